#pragma once

#include <filesystem>
#include <optional>

#include "mesh/group.h"
#include "runtime/files/file_lock.h"

namespace meshtrain {

/// The lock of a run directory on hosts with disks of their own, held as long as this lives: by the first rank of each
/// host whose RUN_DIR is not that of rank 0, who has locked that with RunDirectory.
class HostLock {
 public:
  /// `folder`: RUN_DIR, which exists on rank 0's host. It is made on the others; where it cannot be, there is nothing
  /// to lock. Every rank must call it. Throws InputError on all of them when a host's is in use by another run.
  HostLock(const std::filesystem::path& folder, const Group& world);

 private:
  std::optional<LockFile> lock_;
};

}  // namespace meshtrain
