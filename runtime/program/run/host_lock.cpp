#include "runtime/program/run/host_lock.h"

#include <system_error>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/host_map.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

/// Returns true when `folder` is the same folder as rank 0's: this rank sees a file that rank 0 creates there under a
/// new name. Every rank must call it.
bool is_that_of_rank_0(const fs::path& folder, const Group& world) {
  std::string name;
  agree(world, [&] {
    if (world.rank() != 0) return;
    name = "hosts-" + random_id();
    write_atomically(folder / name, "");
  });
  name = broadcast_text(world, name);
  std::error_code failed;
  const bool seen = fs::exists(folder / name, failed);
  world.barrier();
  if (world.rank() == 0) fs::remove(folder / name, failed);
  return seen;
}

}  // namespace

HostLock::HostLock(const fs::path& folder, const Group& world) {
  const HostMap hosts = HostMap::of(world);
  if (hosts.num_hosts() == 1) return;
  const bool is_locked = is_that_of_rank_0(folder, world);  // rank 0 has locked its folder
  agree(world, [&] {
    if (is_locked || !hosts.is_first_of_host(world.rank())) return;
    std::error_code failed;
    fs::create_directories(folder, failed);
    if (!fs::is_directory(folder, failed)) return;
    lock_.emplace(folder / "lock");
    if (!lock_->is_taken()) return;
    throw InputError(world.coordinate_text() + " on " + host_name() + ": the run directory " + folder.string() +
                     " is in use by another run on that host; choose another --run-dir");
  });
}

}  // namespace meshtrain
