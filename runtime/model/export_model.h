#pragma once

#include <filesystem>

#include "fsdp/fsdp.h"
#include "mesh/device_mesh.h"
#include "runtime/hf/carried_over.h"
#include "runtime/model/shape.h"

namespace meshtrain {

/// Writes the model as a Hugging Face folder (config.json, safetensors, what is `carried` over), readable by
/// transformers: gathered one unit at a time, and over tp one tensor, without padding, written by rank 0. Every rank
/// must call it. Throws on every rank when writing fails (a full disk); the folder then does not appear.
void export_model(Fsdp& fsdp, const ModelShape& shape, const CarriedOver& carried, const DeviceMesh& mesh,
                  const std::filesystem::path& folder);

}  // namespace meshtrain
