#include "mesh/base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

const std::string kTwo = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
const std::string kOne =
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

/// Files like those of a kernel in /proc and /sys.
class CgroupFiles : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& content) const {
    const std::filesystem::path file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
  void mount(const std::string& group, const std::string& mounts) const {
    write("proc/self/cgroup", group);
    write("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n" + mounts);
  }
  /// Returns the limit; -1: none.
  double processors() const {
    const auto quota = Cgroups(folder_.path()).processors();
    return quota ? quota->processors : -1;
  }
  std::filesystem::path root() const { return folder_.path(); }
  int64_t memory() const { return Cgroups(folder_.path()).memory().value_or(-1); }

 private:
  testing::ScratchFolder folder_;
};

TEST_F(CgroupFiles, WithoutThemThereIsNoLimit) {
  EXPECT_EQ(processors(), -1);
  EXPECT_EQ(memory(), -1);
  mount("0::/\n", kTwo);  // the root has no such files
  EXPECT_EQ(processors(), -1);
  EXPECT_EQ(memory(), -1);
}

TEST_F(CgroupFiles, TheLowestOfAllLevelsCounts) {
  mount("0::/slurm/job/step\n", kTwo);
  write("sys/fs/cgroup/slurm/cpu.max", "800000 100000\n");
  write("sys/fs/cgroup/slurm/job/cpu.max", "250000 100000\n");
  write("sys/fs/cgroup/slurm/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(processors(), 2.5);
  write("sys/fs/cgroup/slurm/memory.max", "9000\n");
  write("sys/fs/cgroup/slurm/memory.current", "8500\n");
  write("sys/fs/cgroup/slurm/memory.stat", "anon 100\ninactive_file 400\nactive_file 300\n");
  write("sys/fs/cgroup/slurm/job/step/memory.max", "3000\n");
  write("sys/fs/cgroup/slurm/job/step/memory.current", "1900\n");
  EXPECT_EQ(memory(), 900);  // 9000 - (8500 - 400), not 3000 - 1900
  write("sys/fs/cgroup/slurm/job/step/memory.current", "5000\n");
  EXPECT_EQ(memory(), 0);
  write("sys/fs/cgroup/slurm/job/step/memory.max", "max\n");
  EXPECT_EQ(memory(), 900);
}

TEST_F(CgroupFiles, OfVersionOneBesideAnEmptyVersionTwo) {
  mount("5:cpu,cpuacct:/job\n4:memory:/job/task\n2:cpuset:/other\n0::/\n",
        kOne + "42 31 0:39 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processors(), -1);
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(processors(), 3);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1500\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "cache 900\ninactive_file 1\ntotal_inactive_file 700\n");
  EXPECT_EQ(memory(), 1200);
}

/// A container sees its own part of the hierarchy; in its own name space the path is short too.
TEST_F(CgroupFiles, InAContainer) {
  write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  write("sys/fs/cgroup/inner/cpu.max", "100000 100000\n");
  const std::string part = "41 31 0:38 /docker/abc /sys/fs/cgroup ro,relatime - cgroup2 cgroup ro\n";
  mount("0::/docker/abc\n", part);
  EXPECT_EQ(processors(), 2);
  mount("0::/docker/abc/inner\n", part);
  EXPECT_EQ(processors(), 1);
  mount("0::/\n", kTwo);
  EXPECT_EQ(processors(), 2);
  mount("0::/../elsewhere\n", kTwo);
  EXPECT_EQ(processors(), 2);
}

/// The hierarchy was mounted outside this process's control group name space: the mount's root is above the name
/// space's.
TEST_F(CgroupFiles, AMountMayBeginAboveTheNameSpace) {
  const std::string above = "41 31 0:38 /.. /sys/fs/cgroup ro,relatime - cgroup2 cgroup ro\n";
  write("sys/fs/cgroup/cpu.max", "800000 100000\n");
  write("sys/fs/cgroup/job/cpu.max", "300000 100000\n");
  write("sys/fs/cgroup/job/step/cpu.max", "200000 100000\n");
  write("sys/fs/cgroup/other/cpu.max", "100000 100000\n");
  write("sys/fs/cgroup/other/step/cpu.max", "100000 100000\n");
  mount("0::/../job/step\n", above);  // the group was moved out of the mount
  EXPECT_EQ(processors(), 2);
  mount("0::/step\n", above);  // the mount's root has no name here: it is the group of this process
  EXPECT_EQ(processors(), 8) << "none has this process";
  write("sys/fs/cgroup/job/step/cgroup.procs", std::to_string(getpid()) + "\n");
  EXPECT_EQ(processors(), 2);
  mount("0::/\n", above);
  write("sys/fs/cgroup/job/cgroup.procs", "1\n" + std::to_string(getpid()) + "\n");
  EXPECT_EQ(processors(), 3);
  mount("0::/\n", "41 31 0:38 /../.. /sys/fs/cgroup ro,relatime - cgroup2 cgroup ro\n");
  EXPECT_EQ(processors(), 2);
}

TEST_F(CgroupFiles, AGroupHasOneNumber) {
  mount("0::/a/b\n", kTwo);
  write("sys/fs/cgroup/a/cpu.max", "200000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  const uint64_t outer = Cgroups(root()).processors()->group;
  mount("0::/a/c\n", kTwo);
  EXPECT_EQ(Cgroups(root()).processors()->group, outer);
  write("sys/fs/cgroup/a/c/cpu.max", "100000 100000\n");
  EXPECT_NE(Cgroups(root()).processors()->group, outer);
}

}  // namespace
}  // namespace meshtrain
