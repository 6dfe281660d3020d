// Each rank stands for a host, and has a folder of its own as that host's disk.

#include "runtime/program/run/host_lock.h"

#include <gtest/gtest.h>

#include <memory>

#include "mesh/base/error.h"
#include "mesh/base/files/file_lock.h"
#include "tests/support/hosts.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class HostLockTest : public ::testing::Test {
 protected:
  /// Returns the run directory of this rank's host. Rank 0's exists, as if RunDirectory had made it.
  fs::path own_folder() const {
    const fs::path folder = scratch_.path() / std::to_string(world().rank());
    if (world().rank() == 0) fs::create_directories(folder);
    return folder;
  }

  const ScratchFolder scratch_{world()};
};

TEST_F(HostLockTest, EachHostWithADiskOfItsOwnIsLocked) {
  const fs::path folder = own_folder();
  const HostLock lock(folder, world_on(Hosts::Each));
  EXPECT_EQ(fs::exists(folder / "lock"), world().rank() != 0) << "RunDirectory locks that of rank 0";
  if (world().rank() != 0) {
    EXPECT_TRUE(LockFile(folder / "lock").is_taken());
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), world().rank() == 0 ? 0 : 1)
      << "nothing else is left";
  world().barrier();
}

TEST_F(HostLockTest, HostsThatShareADiskHaveTheLockOfRank0) {
  const fs::path folder = scratch_.path() / "shared";
  if (world().rank() == 0) fs::create_directories(folder);
  const HostLock lock(folder, world_on(Hosts::Each));
  EXPECT_FALSE(fs::exists(folder / "lock"));
  world().barrier();
}

TEST_F(HostLockTest, RanksOfOneHostNeedNone) {
  const HostLock lock(scratch_.path() / "none", world_on(Hosts::Found));
  EXPECT_FALSE(fs::exists(scratch_.path() / "none"));
  world().barrier();
}

TEST_F(HostLockTest, AnotherRunOnOneHostIsAnErrorOfAllRanks) {
  if (world().size() == 1) return;
  const fs::path folder = own_folder();
  std::unique_ptr<LockFile> other;
  if (world().rank() == 1) {
    fs::create_directories(folder);
    other = std::make_unique<LockFile>(folder / "lock");
  }
  const std::string said = message<InputError>([&] { HostLock lock(folder, world_on(Hosts::Each)); });
  EXPECT_TRUE(has(said, "1 on ") && has(said, ": the run directory " + (scratch_.path() / "1").string() +
                                                  " is in use by another run on that host"))
      << said;
  world().barrier();
}

}  // namespace
}  // namespace meshtrain::testing
