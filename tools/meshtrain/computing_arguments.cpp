#include "tools/meshtrain/computing_arguments.h"

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/writable_folder.h"
#include "runtime/program/recipe/decisions.h"

namespace meshtrain {

void add_computing_options(CLI::App& command, ComputingArguments& arguments) {
  command
      .add_option("--precision", arguments.precision,
                  "fp64, fp32, bf16 or fp16. Default: the precision of the weights, or of the run")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}))
      ->type_name("PRECISION");
  command
      .add_option("--device", arguments.device, "auto, cpu or cuda; auto: cuda where each rank has a GPU of its own")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("DEVICE");
  command
      .add_option("--offload", arguments.offload,
                  "For models larger than memory: keeps each rank's weights in a file in FOLDER, on one rank too, and "
                  "reads a layer's weights when it needs them. CPUs only")
      ->type_name("FOLDER");
}

DeviceContext connect_devices(const ComputingArguments& arguments, const Group& world) {
  DeviceRequest request{.kind = device_kind(arguments.device)};
  if (!arguments.offload) return connect_devices(request, world);
  const std::string folder = arguments.offload->string();
  if (request.kind == DeviceRequest::Kind::Cuda) {
    throw InputError("--offload " + folder +
                     " works only on CPUs, but the device is cuda: leave out --offload, or give --device cpu");
  }
  agree(world, [&] { check_writable_or_new(*arguments.offload, "--offload"); });
  request.cpu_only = Setting{"--offload", folder};
  return connect_devices(request, world);
}

}  // namespace meshtrain
