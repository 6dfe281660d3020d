#include "runtime/generate/language_model.h"

#include <ATen/ATen.h>

#include "mesh/agree.h"
#include "mesh/error.h"

namespace meshtrain {
namespace {

Parallelism over_tp(const DeviceMesh& mesh) {
  if (mesh.size() != mesh.size("tp")) {
    throw InputError("mesh " + mesh.layout().describe() +
                     ": text is generated over tp alone, whose ranks share one sequence: all ranks must be on it, as "
                     "in --mesh tp=" +
                     std::to_string(mesh.size()));
  }
  return {{mesh.group("tp"), /*sequence_parallel=*/false}, mesh.group("cp")};
}

}  // namespace

LanguageModel::LanguageModel(const ModelShape& shape, const DeviceMesh& mesh, at::ScalarType dtype,
                             const std::function<void(const Parameter&)>& read, at::Device device)
    : shape_(shape),
      parallelism_(over_tp(mesh)),
      options_(at::TensorOptions(device).dtype(dtype)),
      model_(shape, parallelism_, options_) {
  for (Parameter* parameter : model_.parameters()) parameter->tensor.set_requires_grad(false);
  units_ = std::make_unique<Fsdp>(model_.units(), FsdpOptions{});
  agree(mesh.world(), [&] { units_->write_values(read); });
}

KeyValueCache LanguageModel::make_cache(int64_t capacity) const {
  return KeyValueCache(shape_, parallelism_.tensor.group.size(), capacity, options_);
}

VocabularyLogits LanguageModel::next(const std::vector<int64_t>& ids, KeyValueCache& cache) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const at::Tensor positions = at::arange(cache.length(), cache.length() + count);
  const Sequence sequence{SequenceLayout::whole(count),
                          make_rotary(shape_, positions, options_.dtype().toScalarType(), options_.device()), &cache};
  return model_.next_logits(at::tensor(ids, at::kLong).to(options_.device()), sequence, *units_);
}

}  // namespace meshtrain
