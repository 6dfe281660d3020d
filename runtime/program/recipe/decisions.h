#pragma once

#include <string>

#include "mesh/base/error.h"
#include "mesh/layout.h"
#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// All decisions that a recipe leaves to the mesh, the model and the batch, made once. The floors below are built from
/// them and never see the recipe.
struct Decisions : TrainingOptions {
  MeshLayout layout;
  DeviceRequest device;
};

/// Checks the recipe against the mesh, the model and the batch, and decides: `auto` becomes a value. `layout` has the
/// axes dp, tp and cp. No communication; every rank gets the same result. Throws InputError with the keys, their
/// locations when the recipe knows them, and the numbers.
Decisions resolve(const Recipe& recipe, const MeshLayout& layout);

/// Returns `error` with its key replaced by the key's location, when `recipe` knows that.
InputError located(const InputError& error, const Recipe& recipe);

/// Returns `recipe` with the sizes and the order of `layout` as its mesh.
Recipe on_mesh(Recipe recipe, const MeshLayout& layout);

/// Returns the decisions as YAML, which `train --check` prints and RUN_DIR/decisions.yaml keeps.
std::string to_yaml(const Decisions& decisions);

/// Returns the dtype of a precision: "fp32" -> at::kFloat, ...; for a mixed precision the dtype in which parameters are
/// used: "bf16_mixed" -> at::kBFloat16.
at::ScalarType dtype_of(const std::string& precision);

/// Returns the memory for a value of parallel.fsdp.offload.to: "none", "host", "disk".
Offload offload_kind(const std::string& word);

/// Returns the device for a value of the key `device` or of --device: "auto", "cpu", "cuda".
DeviceRequest::Kind device_kind(const std::string& word);

}  // namespace meshtrain
