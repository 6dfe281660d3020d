#include "runtime/program/launch/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "mesh/base/error.h"
#include "runtime/program/launch/variables.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;

using RankProcessors = std::vector<Processors>;

/// Returns `count` ranks of one kind.
RankProcessors operator*(size_t count, const Processors& kind) {
  return RankProcessors(count, kind);
}

HostMap one_host(size_t ranks) {
  return HostMap(std::vector<int>(ranks, 0));
}

void expect(const RankProcessors& ranks, const HostMap& hosts, const std::vector<int>& threads,
            const std::string& text) {
  EXPECT_EQ(share_threads(ranks, hosts), threads) << text;
  EXPECT_EQ(describe_threads(ranks, hosts), text);
}

TEST(Threads, AreTheCoresOfAMaskDividedByItsRanks) {
  const Processors all{.cores = 8, .mask = 1}, core{.cores = 1, .mask = 2}, other_core{.cores = 1, .mask = 3};
  expect(1 * all, HostMap(), {8}, "8 threads: 8 cores");
  expect(2 * all, one_host(2), {4, 4}, "4 threads a rank: 8 cores that 2 ranks share");
  expect(3 * all, one_host(3), {2, 2, 2}, "2 threads a rank: 8 cores that 3 ranks share");
  expect({core, other_core}, one_host(2), {1, 1}, "1 thread a rank: 1 core");                 // mpirun --bind-to core
  expect(4 * core, one_host(4), {1, 1, 1, 1}, "1 thread a rank: 1 core that 4 ranks share");  // oversubscribed
}

TEST(Threads, OfUnequalHostsDiffer) {
  const Processors small{.cores = 4, .mask = 1}, large{.cores = 16, .mask = 1};
  expect({small, small, large}, HostMap({0, 0, 1}), {2, 2, 16},
         "2 threads on rank 0: 4 cores that 2 ranks share; 2 to 16 threads on others");
  expect({small, large, small, large}, HostMap({0, 1, 0, 1}), {2, 8, 2, 8},
         "2 threads on rank 0: 4 cores that 2 ranks share; 2 to 8 threads on others");
  // A rank bound to a socket, beside one that is not bound.
  const Processors socket{.cores = 8, .mask = 2};
  expect({large, socket}, one_host(2), {16, 8}, "16 threads on rank 0: 16 cores; 8 to 16 threads on others");
}

TEST(Threads, KeepToTheTimeThatAGroupMayUse) {
  Processors limited{.cores = 64, .mask = 1, .millicores = 6000, .quota_group = 5};
  expect(1 * limited, HostMap(), {6}, "6 threads: a limit of 6 cores on processor time (cpu.max)");
  expect(2 * limited, one_host(2), {3, 3},
         "3 threads a rank: a limit of 6 cores on processor time (cpu.max) that 2 ranks share");
  limited.millicores = 2500;
  expect(1 * limited, HostMap(), {2}, "2 threads: a limit of 2.5 cores on processor time (cpu.max)");
  expect(4 * limited, one_host(4), {1, 1, 1, 1},
         "1 thread a rank: a limit of 2.5 cores on processor time (cpu.max) that 4 ranks share");
  limited.cores = 2;
  expect(1 * limited, HostMap(), {2}, "2 threads: 2 cores");
  EXPECT_EQ(limited.usable(), 2);
  limited.millicores = 300;
  EXPECT_EQ(limited.usable(), 1);
  // Each bound to its own socket, in one group.
  const Processors left{.cores = 8, .mask = 1, .millicores = 6000, .quota_group = 5};
  const Processors right{.cores = 8, .mask = 2, .millicores = 6000, .quota_group = 5};
  expect({left, right}, one_host(2), {3, 3},
         "3 threads a rank: a limit of 6 cores on processor time (cpu.max) that 2 ranks share");
  // Separate groups.
  const Processors alone{.cores = 8, .mask = 1, .millicores = 3000, .quota_group = 6};
  EXPECT_EQ(share_threads({left, alone}, one_host(2)), (std::vector<int>{4, 3}));
}

TEST(Threads, AreAsManyAsAreAskedFor) {
  const Processors asked{.cores = 8, .mask = 1, .millicores = 2000, .quota_group = 5, .asked = 12};
  expect(2 * asked, one_host(2), {12, 12}, "12 threads a rank: set by OMP_NUM_THREADS");
}

TEST(Threads, AreAskedForAsOpenMpHasIt) {
  EXPECT_EQ(asked_threads(nullptr), 0);
  for (const char* none : {"", " ", "\t\n"}) EXPECT_EQ(asked_threads(none), 0) << none;
  for (const char* three : {"3", " 3 ", "3,1", "3 , 2,1", "\t3"}) EXPECT_EQ(asked_threads(three), 3) << three;
  for (const std::string wrong :
       {"abc", "0", "-1", "1.5", "2,0", "2,", ",2", "2,,1", "2 1", "2x", "0x2", "99999999999"}) {
    const std::string text = message<InputError>([&] { asked_threads(wrong.c_str()); });
    EXPECT_TRUE(has(text, "OMP_NUM_THREADS is \"" + wrong + "\": set it to a number of threads")) << wrong << text;
  }
}

TEST(Variables, OfSecondsAreRefusedWhereTheyAreNone) {
  for (const char* name : {"MESHTRAIN_SILENCE_LIMIT", "MESHTRAIN_SLOW_WRITE"}) {
    const auto refusal = [&](const char* value) {
      setenv(name, value, 1);
      return message<InputError>([] { check_variables(); });
    };
    for (const char* right : {"", "3", "2.5", "86400"}) EXPECT_EQ(refusal(right), "") << right;
    for (const std::string wrong : {"abc", "0", "-1", "3s", " 3", "nan", "1e300"}) {
      EXPECT_TRUE(has(refusal(wrong.c_str()), std::string(name) + " is \"" + wrong + "\": set it to ")) << wrong;
    }
    unsetenv(name);
  }
  for (const auto& [value, is_right] : {std::pair("0", true), {"2.5", true}, {"-1", false}, {"soon", false}}) {
    setenv("MESHTRAIN_PROGRESS", value, 1);
    EXPECT_EQ(message<InputError>([] { check_variables(); }).empty(), is_right) << value;
  }
  unsetenv("MESHTRAIN_PROGRESS");
}

TEST(Threads, AreThoseThatAreSaid) {
  const int before = at::get_num_threads();
  const std::string environment = std::getenv("OMP_NUM_THREADS") == nullptr ? "" : std::getenv("OMP_NUM_THREADS");
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "5,2", 1), 0);
  EXPECT_EQ(set_threads(Group()), "5 threads: set by OMP_NUM_THREADS");
  EXPECT_EQ(at::get_num_threads(), 5) << "more than this machine has, where it has fewer cores";
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "", 1), 0);
  EXPECT_EQ(set_threads(Group()).find("OMP_NUM_THREADS"), std::string::npos) << "empty is unset";
  setenv("OMP_NUM_THREADS", environment.c_str(), 1);
  if (environment.empty()) unsetenv("OMP_NUM_THREADS");
  at::set_num_threads(before);
}

TEST(Threads, OfAProcessAreThoseOfItsMask) {
  const Processors all = find_processors();
  Processors first, again;
  std::thread bound([&] {  // each thread has its own mask
    cpu_set_t mask;
    sched_getaffinity(0, sizeof mask, &mask);
    int core = 0;
    while (!CPU_ISSET(core, &mask)) ++core;
    CPU_ZERO(&mask);
    CPU_SET(core, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    first = find_processors();
    again = find_processors();
  });
  bound.join();
  EXPECT_EQ(first.cores, 1);
  EXPECT_EQ(first.mask, again.mask);
  if (all.cores > 1) {
    EXPECT_NE(first.mask, all.mask);
  }
}

TEST(Threads, OfAProcessKeepToItsGroup) {
  const testing::ScratchFolder folder;
  std::filesystem::create_directories(folder.path() / "proc/self");
  std::filesystem::create_directories(folder.path() / "sys/fs/cgroup/job");
  std::ofstream(folder.path() / "proc/self/cgroup") << "0::/job\n";
  std::ofstream(folder.path() / "proc/self/mountinfo") << "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  const Cgroups cgroups(folder.path());
  EXPECT_EQ(find_processors(cgroups).millicores, 0);
  std::ofstream(folder.path() / "sys/fs/cgroup/job/cpu.max") << "150000 100000\n";
  const Processors found = find_processors(cgroups);
  EXPECT_EQ(found.millicores, 1500);
  EXPECT_EQ(found.usable(), 1);
  EXPECT_NE(found.quota_group, 0);
}

}  // namespace
}  // namespace meshtrain
