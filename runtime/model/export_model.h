#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/parameter.h"
#include "runtime/model/shape.h"

namespace meshtrain {

/// Writes the model as a Hugging Face folder (config.json, safetensors), readable by transformers: gathered over tp one
/// tensor at a time, without padding, written by rank 0. Every rank must call it. Throws on every rank when writing
/// fails (a full disk); the folder then does not appear.
void export_model(const std::vector<Parameter*>& parameters, const ModelShape& shape, const DeviceMesh& mesh,
                  const std::filesystem::path& folder);

}  // namespace meshtrain
