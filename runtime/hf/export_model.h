#pragma once

#include <filesystem>
#include <string>

#include "fsdp/fsdp.h"
#include "mesh/device_mesh.h"
#include "runtime/hf/carried_over.h"
#include "runtime/model/shape.h"

namespace meshtrain {

/// Writes the model as a Hugging Face folder that transformers can read: config.json, safetensors, the files of
/// `carried`. Gathers one unit at a time, and one tensor over tp, without padding; rank 0 writes. Every rank must call
/// it; on rank 0 it returns where the weights are, for people. Throws InputError or AgreedError on every rank when
/// writing fails (a full disk); the folder then does not appear.
std::string export_model(Fsdp& fsdp, const ModelShape& shape, const CarriedOver& carried, const DeviceMesh& mesh,
                         const std::filesystem::path& folder);

}  // namespace meshtrain
