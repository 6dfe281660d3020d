// Runs on two hosts, each with its own disk: network and mount namespaces of this machine. Also checks the processors
// and the memory that a host offers a run.
#include <algorithm>
#include <filesystem>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

struct Launch {
  const char* name;
  const char* ranks;
  const char* map_by;
  const char* prologue;  ///< shell line before each rank
};

/// The environment under srun: no numbers of Open MPI, and Slurm's numbers for the job, which do not describe this
/// host.
constexpr const char* kAsSlurm =
    "unset OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_RANK\n"
    "export SLURM_NTASKS_PER_NODE=4 SLURM_LOCALID=0 MPI_LOCALNRANKS=4";

class CheckpointsOnTwoHosts : public TrainProgram, public ::testing::WithParamInterface<Launch> {
 protected:
  CheckpointsOnTwoHosts() {
    fs::create_directories(run_dir);
    fs::create_directories(disk_);
  }

  Ending train_on_hosts(const Words& arguments) const {
    const Launch& launch = GetParam();
    Words words = {source_folder() + "/tests/support/two_hosts",
                   "--ranks",
                   launch.ranks,
                   "--map-by",
                   launch.map_by,
                   "--own",
                   run_dir.string() + "=" + disk_.string(),
                   "/bin/sh",
                   "-c",
                   std::string(launch.prologue) + "\nexec \"$0\" \"$@\""};
    const Words command = this->command(0, arguments);
    words.insert(words.end(), command.begin() + 2, command.end());
    return run_program(words);
  }

  static Words names(const fs::path& folder) {
    Words names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  const fs::path disk_ = path("disk");  ///< disk of the second host, mounted there as run_dir
};

TEST_P(CheckpointsOnTwoHosts, HaveTheSameCheckpoints) {
  const Ending ending = train_on_hosts({"--mesh", "dp=4", "--set", "checkpoint.every=2", "--set",
                                        "parallel.fsdp.mode=full_shard", "--set", "checkpoint.keep_last=1"});
  if (ending.status == 77) GTEST_SKIP() << ending.err;
  ASSERT_EQ(ending.status, 0) << ending.err;
  size_t files = 0;
  for (const fs::path& folder : {run_dir, disk_}) {
    const Words found = names(folder / "checkpoints");  // the id of the run, and the checkpoints it keeps
    EXPECT_EQ(found, names(run_dir / "checkpoints")) << folder;
    ASSERT_EQ(found.size(), 2U) << folder;
    EXPECT_EQ(found.back(), "step-00000004") << folder;
    for (const std::string& name : names(folder / "checkpoints/step-00000004")) files += name.rfind("rank-", 0) == 0;
  }
  EXPECT_EQ(files, 4U);
}

INSTANTIATE_TEST_SUITE_P(Launched, CheckpointsOnTwoHosts,
                         ::testing::Values(Launch{"ByNode", "2,2", "node", ""}, Launch{"Unequal", "3,1", "slot", ""},
                                           Launch{"AsBySrun", "2,2", "slot", kAsSlurm},
                                           Launch{"AsBySrunInTurn", "1,3", "node", kAsSlurm}),
                         [](const auto& tested) { return tested.param.name; });

using TrainThreads = TrainProgram;

TEST_F(TrainThreads, AreThoseOfTheRanksCores) {
  const std::string one_core =
      "unset OMP_NUM_THREADS\n"
      "first=$(sed -n 's/Cpus_allowed_list:[[:space:]]*\\([0-9]*\\).*/\\1/p' /proc/self/status)\n"
      "taskset -pc $first $$ >&2";
  const Ending ending = train(2, {"--mesh", "dp=2"}, one_core);
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.out.rfind("1 thread a rank: 1 core that 2 ranks share\n", 0), 0U) << ending.out << ending.err;
  EXPECT_EQ(count(ending.out, "thread"), 1) << ending.out;
}

TEST_F(TrainThreads, KeepToALimitOnProcessorTime) {
  Words words = {source_folder() + "/tests/support/limited", "--cpus", "0.9"};
  const Words command = this->command(1, {}, "unset OMP_NUM_THREADS");
  words.insert(words.end(), command.begin(), command.end());
  const Ending ending = run_program(words);
  if (ending.status == 77) GTEST_SKIP() << ending.err;
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.out.rfind("1 thread: a limit of 0.9 cores on processor time (cpu.max)\n", 0), 0U) << ending.out;
}

}  // namespace
}  // namespace meshtrain::testing
