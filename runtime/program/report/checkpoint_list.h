#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace meshtrain {

/// A checkpoint that lies in a run directory.
struct ListedCheckpoint {
  int64_t step = 0;
  bool abandoned = false;  ///< the run went on from an earlier one
  double time = 0;         ///< seconds since 1970 when it was complete
  int64_t num_files = 0;   ///< of ranks
  int64_t bytes = 0;       ///< of all files

  bool operator==(const ListedCheckpoint&) const = default;
};

/// Returns the checkpoints in `folder`, by step. Partial ones are left out, as are folders that vanish meanwhile. A
/// folder that does not exist has none. Throws InputError when it cannot be read.
std::vector<ListedCheckpoint> list_checkpoints(const std::filesystem::path& folder);

}  // namespace meshtrain
