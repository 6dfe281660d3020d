// A failing rank ends the job at once, with its message and a status other than 0, and no process remains. The tests of
// suite Victim fail on purpose; the others run them, under their own mpirun.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "tests/support/commands.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::now_ms;
using testing::Outcome;
using testing::run;
using testing::this_program;
using testing::world;

/// Tells the parent about this victim: its process, and the time of the failure.
void announce() {
  std::printf("pid %d\n", getpid());
  std::fflush(stdout);
  world().barrier();
}
void announce_failure() {
  std::printf("failing %ld\n", static_cast<long>(now_ms()));
  std::fflush(stdout);
}

void wait_for_everyone() {
  at::Tensor tensor = at::ones({1 << 20}, at::kFloat);
  world().all_reduce(tensor).wait();
}

TEST(Victim, DISABLED_Throws) {
  announce();
  if (world().rank() == 1) {
    announce_failure();
    throw std::runtime_error("the disk is gone");
  }
  wait_for_everyone();
}

TEST(Victim, DISABLED_ExitsAlone) {
  announce();
  if (world().rank() == 1) {
    announce_failure();
    std::exit(3);
  }
  wait_for_everyone();
}

TEST(Victim, DISABLED_ExitsWithCollectivesUnfinished) {
  announce();
  if (world().rank() == 1) {
    at::Tensor tensor = at::ones({1 << 20}, at::kFloat);
    const Group again = world().split({0, 1, 2}, "again");
    again.all_reduce(tensor);
    announce_failure();
    std::exit(0);
  }
  world().split({0, 1, 2}, "again");
  wait_for_everyone();
}

TEST(Victim, DISABLED_ThrowsWhereNothingCatches) {
  announce();
  if (world().rank() == 1) {
    announce_failure();
    std::thread([] { throw std::runtime_error("out of reach"); }).join();
  }
  wait_for_everyone();
}

TEST(Victim, DISABLED_CallsWithATensorOfItsOwnLength) {
  announce();
  const int64_t length = world().rank() == 1 ? 2000 : 1000;
  if (world().rank() == 1) announce_failure();
  at::Tensor output = at::zeros({world().size() * length}, at::kFloat);
  world().all_gather(output, at::zeros({length}, at::kFloat)).wait();
  wait_for_everyone();
}

TEST(Victim, DISABLED_IsKilledInAWindow) {
  at::Tensor tensor = world().allocate(16 << 20, at::kFloat, Placement::Own).tensor;
  at::Tensor common = world().allocate(3 << 20, at::kFloat, Placement::Common).tensor;
  announce();
  if (world().rank() == 1) {
    world().all_reduce(tensor);
    announce_failure();
    kill(getpid(), SIGKILL);
  }
  for (;;) {
    world().all_reduce(tensor).wait();
    world().all_gather(common, common.narrow(0, world().rank() << 20, 1 << 20)).wait();
  }
}

TEST(Victim, DISABLED_ExitsTogether) {
  announce();
  announce_failure();
  std::exit(2);
}

/// Returns true for a process that runs; a zombie, which some containers never remove, counts as ended.
bool is_running(int64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const char state = text.at(text.rfind(')') + 2);
  return state != 'Z' && state != 'X';
}

class Failure : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().size() > 1) GTEST_SKIP() << "starts an mpirun of its own";
  }

  static Outcome run_victim(const std::string& name) {
    return run("timeout 60 '" + testing::source_folder() + "/tools/ranks' 3 " + this_program() +
               " --gtest_also_run_disabled_tests --gtest_filter=Victim.DISABLED_" + name);
  }

  static void expect_swift_end(const Outcome& outcome) {
    const std::vector<int64_t> failures = outcome.after("failing");
    ASSERT_FALSE(failures.empty()) << outcome.output;
    EXPECT_LT(outcome.ended_ms - failures.front(), 5000) << outcome.output;
    const std::vector<int64_t> processes = outcome.after("pid");
    EXPECT_EQ(processes.size(), 3u) << outcome.output;
    for (const int64_t process : processes) {
      while (is_running(process) && now_ms() - failures.front() < 5000) usleep(10'000);
      EXPECT_FALSE(is_running(process)) << "process " << process << " is still there";
    }
  }
};

TEST_F(Failure, ARankThatThrowsEndsTheJobWithItsMessage) {
  const Outcome outcome = run_victim("Throws");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("rank 1 of 3: Victim.DISABLED_Throws"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("the disk is gone"), std::string::npos) << outcome.output;
  expect_swift_end(outcome);
}

TEST_F(Failure, ARankThatExitsAloneEndsTheJobWithItsStatus) {
  const Outcome outcome = run_victim("ExitsAlone");
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  expect_swift_end(outcome);
}

TEST_F(Failure, ARankThatExitsInTheMiddleOfACollectiveEndsTheJob) {
  const Outcome outcome = run_victim("ExitsWithCollectivesUnfinished");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  expect_swift_end(outcome);
}

TEST_F(Failure, AnExceptionThatNothingCatchesEndsTheJobWithItsMessage) {
  const Outcome outcome = run_victim("ThrowsWhereNothingCatches");
  EXPECT_NE(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("out of reach"), std::string::npos) << outcome.output;
  expect_swift_end(outcome);
}

TEST_F(Failure, RanksThatCallWithDifferentTensorsAreTold) {
  const Outcome outcome = run_victim("CallsWithATensorOfItsOwnLength");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("all_gather on group world (3 ranks)"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("ranks must call with matching tensors"), std::string::npos) << outcome.output;
  expect_swift_end(outcome);
}

/// Returns the files in /dev/shm, without those of Open MPI and of the emulated NCCL (of tests that run at the same
/// time).
std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = file.path().filename();
    if (!name.starts_with("vader_segment") && !name.starts_with("meshtrain-nccl-")) names.insert(name);
  }
  return names;
}

TEST_F(Failure, ARankThatIsKilledLeavesNoMemoryBehind) {
  const std::set<std::string> before = shared_files();
  const Outcome outcome = run_victim("IsKilledInAWindow");
  EXPECT_EQ(outcome.status, 128 + SIGKILL) << outcome.output;
  expect_swift_end(outcome);
  EXPECT_EQ(shared_files(), before);
}

TEST_F(Failure, ARankThatOrdersAWindowLimitThatIsNoNumberIsTold) {
  setenv("MESHTRAIN_WINDOW_MIB", "much", 1);
  const Outcome outcome = run_victim("Throws");
  unsetenv("MESHTRAIN_WINDOW_MIB");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.output.find("MESHTRAIN_WINDOW_MIB is 'much'"), std::string::npos) << outcome.output;
}

TEST_F(Failure, RanksThatExitTogetherEndWithTheirStatusAndWithoutAnAbort) {
  const Outcome outcome = run_victim("ExitsTogether");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_EQ(outcome.output.find("MPI_ABORT"), std::string::npos) << outcome.output;
  expect_swift_end(outcome);
}

TEST_F(Failure, AForeignLauncherIsRefused) {
  const Outcome outcome = run("env -i PATH=\"$PATH\" OMP_NUM_THREADS=1 MPI_LOCALNRANKS=4 MPI_LOCALRANKID=0 " +
                              this_program() + " --gtest_filter=Box.*");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.output.find("the launcher announces 4 tasks (MPI_LOCALNRANKS), but MPI sees only this one"),
            std::string::npos)
      << outcome.output;
}

}  // namespace
}  // namespace meshtrain
