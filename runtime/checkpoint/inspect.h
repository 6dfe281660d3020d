#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshtrain {

/// The folder of one checkpoint: `path` itself, or the newest of those in it, where it is a run directory or the folder
/// of its checkpoints; where that is damaged, too. Throws InputError when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// What is in the checkpoint `folder`, for people, without looking at its pieces: step, mesh, sizes, tensors, and
/// with `pieces` each box and the file it is in. Throws InputError.
std::string inspect_checkpoint(const std::filesystem::path& folder, bool pieces);

struct VerifiedCheckpoint {
  int64_t num_pieces = 0;
  int64_t num_damaged = 0;  ///< pieces that are missing or damaged
  int64_t num_bytes = 0;
  std::vector<std::string> damage;  ///< a line for each piece that is damaged, and for each file that is missing
};

/// Reads every byte of the checkpoint `folder`. Throws DamagedCheckpoint when its manifest cannot be read or is
/// damaged.
VerifiedCheckpoint verify_checkpoint(const std::filesystem::path& folder);

}  // namespace meshtrain
