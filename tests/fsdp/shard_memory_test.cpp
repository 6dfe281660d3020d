#include "fsdp/shard_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

constexpr int64_t kShardNumel = 1 << 20, kShardBytes = kShardNumel * 4;

/// Returns the bytes of the tensor that are resident, as the system counts them.
int64_t resident_bytes(const at::Tensor& tensor) {
  FILE* file = std::fopen("/proc/self/smaps", "r");
  char line[512];
  bool inside = false;
  long kib = 0;
  const auto address = reinterpret_cast<unsigned long>(tensor.storage().data_ptr().get());
  while (std::fgets(line, sizeof line, file)) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line, "%lx-%lx ", &begin, &end) == 2) inside = begin <= address && address < end;
    if (inside && std::sscanf(line, "Rss: %ld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib << 10;
}

class ShardMemoryOnDisk : public ::testing::Test {
 protected:
  testing::ScratchFolder folder;
  ShardMemory memory = ShardMemory::on_disk(folder.path());
};

TEST_F(ShardMemoryOnDisk, GivesZerosThatKeepWhatIsWrittenWhileTheyAreAside) {
  const at::Tensor tensor = memory.zeros(kShardNumel, at::kFloat), other = memory.zeros(3, at::kDouble);
  EXPECT_TRUE(tensor.eq(0).all().item<bool>());
  const at::Tensor values = testing::random_tensor({kShardNumel}, 1, at::kFloat);
  at::Tensor(tensor).copy_(values);
  at::Tensor(other).fill_(7);
  EXPECT_GE(resident_bytes(tensor), kShardBytes);
  set_aside(tensor);
  EXPECT_EQ(resident_bytes(tensor), 0);
  fetch_ahead(tensor);
  EXPECT_TRUE(at::equal(tensor, values));
  EXPECT_TRUE(other.eq(7).all().item<bool>());
}

TEST_F(ShardMemoryOnDisk, CountsItsBytesAndTakesNoneOfTheHosts) {
  HostMemory& host = HostMemory::counted();
  const int64_t before = host.live();
  const at::Tensor tensor = memory.zeros(kShardNumel, at::kFloat), small = memory.zeros(1, at::kFloat);
  EXPECT_EQ(host.live(), before);
  EXPECT_EQ(memory.disk_bytes(), kShardBytes + 4096);
}

TEST_F(ShardMemoryOnDisk, HasAFileWithoutAName) {
  const at::Tensor tensor = memory.zeros(kShardNumel, at::kFloat);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(ShardMemoryOnDisk, TensorsOutliveIt) {
  const at::Tensor tensor = memory.zeros(kShardNumel, at::kFloat);
  memory = ShardMemory();
  at::Tensor(tensor).fill_(1);
  set_aside(tensor);
  EXPECT_EQ(tensor.sum().item<float>(), kShardNumel);
}

TEST_F(ShardMemoryOnDisk, LeavesMemoryAlone) {
  const at::Tensor tensor = at::ones({kShardNumel});
  set_aside(tensor);
  fetch_ahead(tensor);
  set_aside(at::Tensor(tensor).narrow(0, 5, 10));
  EXPECT_EQ(tensor.sum().item<float>(), kShardNumel);
  EXPECT_EQ(ShardMemory().zeros(4, at::kFloat).sum().item<float>(), 0);
}

// A forecast asks how much would lie there.
TEST_F(ShardMemoryOnDisk, CountsWhatTheMetaDeviceWouldTakeAndTakesNothing) {
  EXPECT_TRUE(memory.zeros(kShardNumel, at::device(at::kMeta).dtype(at::kFloat)).is_meta());
  EXPECT_EQ(memory.disk_bytes(), kShardBytes);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "not even the file is made";
}

TEST_F(ShardMemoryOnDisk, SaysAtOnceThatTheDiskIsTooSmall) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    memory.zeros(kShardNumel, at::kFloat);
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "offload to disk: cannot reserve 4 MiB after 0 KiB in " + folder.path().string() +
                         ": File too large: make room, or give a folder on another disk");
}

TEST(ShardMemory, SaysThatAFolderCannotBeMade) {
  try {
    ShardMemory::on_disk("/proc/none").zeros(1, at::kFloat);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("cannot make a file in /proc/none: No such file or "
                        "directory: give a folder that can be written to"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace meshtrain
