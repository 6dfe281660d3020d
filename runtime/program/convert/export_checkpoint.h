#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/program/hf/carried_over.h"
#include "runtime/program/hf/export.h"

namespace meshtrain {

struct ExportOptions {
  std::optional<at::ScalarType> dtype =
      {};  ///< none: the dtype that the recipe's layers compute in, as for train.export
  int64_t max_file_bytes = kMostFileBytes;  ///< data of one safetensors file, unless a tensor alone is larger
  std::filesystem::path tokenizer = {};     ///< a tokenizer's folder or a file in it; empty: of the recipe's model.hf
  std::filesystem::path base = {};          ///< of a run with adapters: see move_base()
};

struct ExportedCheckpoint {
  int64_t step;
  at::ScalarType dtype;
  size_t num_tensors;
  int64_t num_bytes;
  CarriedOver carried;
};

/// Writes the weights of the checkpoint in `folder`, of any mesh, as the Hugging Face folder `out`. Takes the
/// optimizer's weights, in fp32 if layers compute in a narrower dtype, merges adapters into their base, and rounds
/// once. Works tensor by tensor, and holds no more than two. Verifies the checksum of every piece. `out` appears when
/// it is complete. One process; no collective. Throws InputError when something is missing or damaged, naming file,
/// tensor and box, when a value is beyond the range of fp16, when the tokenizer has ids that the model does not have,
/// and as FolderWriter does.
ExportedCheckpoint export_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& out,
                                     const ExportOptions& options);

}  // namespace meshtrain
