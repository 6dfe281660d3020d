#include "tools/meshtrain/computing_arguments.h"

#include "mesh/agree.h"
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
      .add_option_function<std::string>(
          "--offload",
          [&arguments](const std::string& to) {
            arguments.offload.to = to == "host" ? "host" : "disk";
            if (to != "host") arguments.offload.path = to;
          },
          "For models larger than the device's memory, on one rank too: keeps each rank's weights in host memory next "
          "to its GPU (host), or in a file in FOLDER, and reads a layer's weights when it needs them")
      ->type_name("host|FOLDER");
}

DeviceContext connect_devices(const ComputingArguments& arguments, const Group& world) {
  if (arguments.offload.to == "disk") {
    agree(world, [&] { check_writable_or_new(arguments.offload.path, "--offload"); });
  }
  return connect_devices(DeviceRequest{.kind = device_kind(arguments.device)}, world);
}

}  // namespace meshtrain
