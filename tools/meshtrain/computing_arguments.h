#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// The help of --base.
inline constexpr const char* kBaseHelp =
    "For a run with adapters: the folder of its model.hf, if it has moved; checkpoints do not contain these weights";

/// The command line's precision, device and offload for a model that is read and not trained.
struct ComputingArguments {
  std::optional<std::string> precision;
  std::string device = "auto";
  OffloadRecipe offload = {};  ///< of the weights
};

/// Adds --precision, --device and --offload. `arguments` must outlive `command`.
void add_computing_options(CLI::App& command, ComputingArguments& arguments);

/// Connects the requested devices with connect_devices(). Every rank must call it. Throws the same InputError on all
/// ranks, also when --offload names a folder in which a rank may not create files.
DeviceContext connect_devices(const ComputingArguments& arguments, const Group& world);

}  // namespace meshtrain
