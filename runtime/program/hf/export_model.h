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
/// `carried`. Gathers one unit at a time, and one tensor over tp, without padding; rank 0 writes, and receives what it
/// lacks from the lowest rank that holds it. `groups`: the parameters that this rank holds. Every rank of `mesh` must
/// call it; on rank 0 it returns where the weights are, for people. Throws InputError or AgreedError on every rank when
/// writing fails (a full disk); the folder then does not appear.
std::string export_model(const ParameterIndex& index, const std::vector<ParameterGroup>& groups,
                         const ModelShape& shape, const CarriedOver& carried, const DeviceMesh& mesh,
                         const std::filesystem::path& folder);

}  // namespace meshtrain
