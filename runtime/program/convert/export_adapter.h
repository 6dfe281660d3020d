#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <optional>

namespace meshtrain {

struct ExportedAdapter {
  int64_t step;
  size_t num_tensors;
  int64_t num_bytes;
};

/// Writes the adapters of the checkpoint in `folder`, of any mesh, as the folder `out` of PEFT: adapter_config.json and
/// adapter_model.safetensors, with the modules of the base that were trained too. `dtype`: none: that of the
/// checkpoint. Layers that the family stores as one have one adapter there, of their ranks together, with the same
/// product. Verifies the checksum of every piece. `out` appears when it is complete. One process; no collective. Throws
/// InputError when the run has no adapters, when something is missing or damaged, when a part of the base was trained
/// that PEFT cannot save beside adapters, and as ExportFolder does.
ExportedAdapter export_adapter(const std::filesystem::path& folder, const std::filesystem::path& out,
                               std::optional<at::ScalarType> dtype);

}  // namespace meshtrain
