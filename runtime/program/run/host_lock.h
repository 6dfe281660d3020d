#pragma once

#include <filesystem>
#include <optional>

#include "mesh/base/files/file_lock.h"
#include "mesh/group.h"

namespace meshtrain {

/// The lock of a run directory on hosts with disks of their own, held while this object lives. The first rank of each
/// host whose RUN_DIR differs from rank 0's holds it; RunDirectory locks rank 0's.
class HostLock {
 public:
  /// Locks `folder`, RUN_DIR, which exists on rank 0's host. Creates it on other hosts; a host that cannot create it
  /// needs no lock. Every rank must call it. Throws InputError on all ranks when another run uses the folder of a host.
  HostLock(const std::filesystem::path& folder, const Group& world);

 private:
  std::optional<LockFile> lock_;
};

}  // namespace meshtrain
