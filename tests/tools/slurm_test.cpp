// recipes/slurm/train.sbatch, with an srun and an scontrol that stand in for Slurm's.
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;

class SlurmScript : public TrainProgram {
 protected:
  SlurmScript() {
    std::filesystem::create_directories(path("bin"));
    // Lists MPI plugins; starts a task for each rank and hands them its signals, which is what mpirun does.
    tool(
        "srun",
        "[ \"$1\" != --mpi=list ] || { echo 'MPI plugin types are...' >&2; echo \"${PLUGINS-none pmix}\" >&2; exit; }\n"
        "echo \"$@\" >>" +
            path("srun").string() +
            "\n"
            "while [ \"${1#--}\" != \"$1\" ]; do shift; done\n"
            "exec " +
            source_folder() + "/tools/ranks 2 \"$@\"");
    tool("scontrol", "echo \"$@\" >>" + path("scontrol").string());
  }

  /// Creates a program that the script finds on its PATH.
  void tool(const std::string& name, const std::string& body) const {
    write("bin/" + name, "#!/bin/sh\n" + body + "\n");
    chmod(path("bin/" + name).c_str(), 0755);
  }

  /// Returns the environment of the script of a job.
  Words job(const Words& more = {}) const {
    Words environment = {"MESHTRAIN=" + build_folder() + "/meshtrain", "SLURM_JOB_ID=7", "SLURM_CPUS_PER_TASK=3"};
    environment.insert(environment.end(), more.begin(), more.end());
    return environment;
  }
  Words script(const Words& arguments = {}) const {
    Words words = {"/usr/bin/env", "PATH=" + path("bin").string() + ":" + std::getenv("PATH"),
                   "bash",         source_folder() + "/recipes/slurm/train.sbatch",
                   recipe,         "--run-dir",
                   run_dir};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  std::string asked_of(const std::string& tool) const {
    return std::filesystem::exists(path(tool)) ? content(path(tool)) : "";
  }
};

TEST_F(SlurmScript, IsQueuedAgainShortlyBeforeItsTimeEndsAndGoesOn) {
  size_t steps = 0;
  {
    Program program(script(kForever), job());
    wait_for_steps(2);
    program.signal(SIGUSR1);
    const Clock::time_point signalled = Clock::now();
    const Ending ending = program.wait();
    EXPECT_LT(Clock::now() - signalled, within(std::chrono::seconds(20))) << "the recipe's own limit is 120";
    EXPECT_EQ(ending.status, 75) << ending.err;
    EXPECT_EQ(asked_of("scontrol"), "requeue 7\n") << ending.out << ending.err;
    EXPECT_TRUE(has(ending.out, "train.sbatch: job 7, start 1: srun --mpi=pmix --cpus-per-task=3 ")) << ending.out;
    steps = metrics().size();
    EXPECT_TRUE(has(ending.out, "stopped on request after step " + std::to_string(steps))) << ending.out;
  }
  const Ending ending =
      run_program(script({"--set", "train.steps=" + std::to_string(steps + 2)}), job({"SLURM_RESTART_COUNT=1"}));
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "train.sbatch: job 7, start 2: ")) << ending.out;
  expect_steps(metrics(), steps + 2);
  EXPECT_EQ(asked_of("scontrol"), "requeue 7\n") << "once";
}

TEST_F(SlurmScript, IsQueuedAgainWhenTheRecipesTimeIsUp) {
  const Ending ending = run_program(script({"--set", "train.steps=1000000", "--set", "train.time_limit=0.5"}), job());
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_EQ(asked_of("scontrol"), "requeue 7\n");
}

TEST_F(SlurmScript, IsNotQueuedAgainAfterAFailure) {
  EXPECT_EQ(run_program(script({"--set", "train.stpes=2"}), job()).status, 2);
  const Ending ending = run_program(script({"--set", "optimizer.learning_rate=1e38"}), job());
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_EQ(asked_of("scontrol"), "");
}

// scancel signals the ranks and the script.
TEST_F(SlurmScript, IsNotQueuedAgainWhenItIsCancelled) {
  Program program(script(kForever), job());
  wait_for_steps(2);
  program.signal(SIGTERM);
  for (const std::filesystem::path& process : processes()) {
    if (has(content(process / "comm"), "meshtrain")) kill(std::stoi(process.filename()), SIGTERM);
  }
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_EQ(asked_of("scontrol"), "");
}

TEST_F(SlurmScript, TakesAnotherLauncher) {
  tool("mpirun", "echo \"$@\" >>" + path("mpirun").string() + "; exit 3");
  EXPECT_EQ(run_program(script(), job({"PLUGINS=none pmi2"})).status, 3) << "Slurm without PMIx";
  EXPECT_EQ(asked_of("mpirun").rfind("--bind-to none " + build_folder() + "/meshtrain train ", 0), 0u);
  EXPECT_EQ(run_program(script(), job({"LAUNCHER=mpirun --map-by node"})).status, 3);
  EXPECT_TRUE(has(asked_of("mpirun"), "\n--map-by node " + build_folder() + "/meshtrain train "));
  EXPECT_EQ(asked_of("srun"), "");
}

TEST_F(SlurmScript, IsSound) {
  const std::string script = source_folder() + "/recipes/slurm/train.sbatch";
  EXPECT_EQ(run_program({"/bin/bash", "-n", script}).status, 0);
  EXPECT_EQ(run_program({"/bin/bash", script}).status, 2) << "without a recipe";
  if (!std::filesystem::exists("/usr/bin/shellcheck")) GTEST_SKIP() << "there is no shellcheck";
  const Ending ending = run_program({"/usr/bin/shellcheck", script});
  EXPECT_EQ(ending.status, 0) << ending.out;
}

}  // namespace
}  // namespace meshtrain::testing
