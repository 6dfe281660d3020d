#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/device_mesh.h"
#include "mesh/parameter_index.h"
#include "runtime/program/hf/carried_over.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Writes the model as a Hugging Face folder that transformers can read: config.json, safetensors, the files of
/// `carried`. Gathers one unit at a time, and one tensor over tp, without padding. Rank 0 writes; it receives each
/// tensor that it lacks from the lowest rank that holds the tensor. Adapters are merged (merged()): rank 0 holds all of
/// them at once. `groups`: the parameters that this rank holds.
/// Every rank of `mesh` must call it. On rank 0 it returns the location of the weights, for people. Throws InputError
/// or AgreedError on every rank when writing fails (a full disk); the folder then does not appear.
std::string export_model(const ParameterIndex& index, const std::vector<ParameterGroup>& groups,
                         const ModelShape& shape, const CarriedOver& carried, const DeviceMesh& mesh,
                         const std::filesystem::path& folder);

}  // namespace meshtrain
