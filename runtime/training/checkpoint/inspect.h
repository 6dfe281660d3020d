#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshtrain {

/// Returns the folder of one checkpoint: `path` itself, or the newest one in it when `path` is a run directory or the
/// folder of its checkpoints, even if that one is damaged. Throws InputError when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Describes the checkpoint `folder` for people, without reading its pieces: step, mesh, sizes, tensors, and with
/// `pieces` each box and the file it is in. Throws InputError.
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
