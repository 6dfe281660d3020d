#include "runtime/model/load.h"

#include <ATen/ATen.h>

#include "mesh/error.h"
#include "runtime/hf/safetensors.h"

namespace meshtrain {

void load_pretrained(const std::vector<Parameter*>& parameters, const std::filesystem::path& folder) {
  at::NoGradGuard no_grad;
  const SafetensorsFolder source(folder);
  for (const Parameter* parameter : parameters) {
    const TensorEntry& entry = source.entry(parameter->name);
    if (entry.shape != parameter->global_shape) {
      throw InputError(folder.string() + ": tensor " + parameter->name + " has shape " + describe_shape(entry.shape) +
                       ", but config.json describes " + describe_shape(parameter->global_shape));
    }
    parameter->valid().detach().copy_(source.read(parameter->name, parameter->box));
  }
}

}  // namespace meshtrain
