#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "tests/support/load.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"
#include "tests/tools/program.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain::testing {
namespace {

// Failures of some of several ranks, in a program that ends by them: the test of the same name below runs each on
// several ranks of this test program.
TEST(OnRanks, DISABLED_InputErrorOfAll) {
  std::exit(run_on_all_ranks(world(), []() -> int { throw InputError("everyone's\nmistake"); }));
}
TEST(OnRanks, DISABLED_InputErrorOfOne) {
  const auto body = [] {
    if (world().rank() == 1) throw InputError("a variable that is set here alone");
    world().barrier();
    return 0;
  };
  std::exit(run_on_all_ranks(world(), body));
}
TEST(OnRanks, DISABLED_AgreedInputError) {
  struct LongCleanUp {
    ~LongCleanUp() { std::this_thread::sleep_for(std::chrono::seconds(2)); }
  };
  std::exit(run_on_all_ranks(world(), [] {
    const std::unique_ptr<LongCleanUp> last(world().rank() == 0 ? new LongCleanUp : nullptr);
    agree(world(), [] {
      if (world().rank() == 2) throw InputError("a file that is not here");
    });
    return 0;
  }));
}
TEST(OnRanks, DISABLED_AgreedFailure) {
  std::exit(run_on_all_ranks(world(), [] {
    agree(world(), [] {
      if (world().rank() == 2) throw std::runtime_error("the disk is full");
    });
    return 0;
  }));
}
TEST(OnRanks, DISABLED_FailureOfOne) {
  std::exit(run_on_all_ranks(world(), []() -> int {
    if (world().rank() == 1) throw std::runtime_error("the disk is full");
    world().barrier();
    return 0;
  }));
}
TEST(OnRanks, DISABLED_StatusOfAll) {
  std::exit(run_on_all_ranks(world(), [] { return 75; }));
}

/// Sets a tenth of the usual patience: a rank whose input is wrong waits 1 s for the others.
Ending run_on_three_ranks(const std::string& test) {
  const auto start = std::chrono::steady_clock::now();
  Ending ending = run_program({"/usr/bin/env", "MESHTRAIN_SILENCE_LIMIT=3", source_folder() + "/tools/ranks", "3",
                               std::filesystem::read_symlink("/proc/self/exe"),
                               "--gtest_filter=OnRanks.DISABLED_" + test, "--gtest_also_run_disabled_tests"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, within(std::chrono::seconds(30))) << "ranks were left behind";
  return ending;
}

TEST(OnRanks, InputErrorOfAll) {
  const Ending ending = run_on_three_ranks("InputErrorOfAll");
  EXPECT_EQ(ending.status, 2) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: everyone's mistake\n"), 1) << ending.err;
}

/// No other rank throws it, so no other rank reports it.
TEST(OnRanks, InputErrorOfOne) {
  const Ending ending = run_on_three_ranks("InputErrorOfOne");
  EXPECT_EQ(ending.status, 2) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: rank 1 alone: a variable that is set here alone\n"), 1) << ending.err;
}

/// All ranks throw it, whenever they have cleaned up: none waits for a limit and reports that it is alone.
TEST(OnRanks, AgreedInputError) {
  const Ending ending = run_on_three_ranks("AgreedInputError");
  EXPECT_EQ(ending.status, 2) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: a file that is not here\n"), 1) << ending.err;
  EXPECT_EQ(count(ending.err, "alone"), 0) << ending.err;
}

TEST(OnRanks, AgreedFailure) {
  const Ending ending = run_on_three_ranks("AgreedFailure");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: rank 2: the disk is full\n"), 1) << ending.err;
}

TEST(OnRanks, FailureOfOne) {
  const Ending ending = run_on_three_ranks("FailureOfOne");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: rank 1: the disk is full\n"), 1) << ending.err;
}

TEST(OnRanks, StatusOfAll) {
  EXPECT_EQ(run_on_three_ranks("StatusOfAll").status, 75);
}

TEST(OnRanks, ARecipeIsRefusedByOne) {
  const ScratchFolder folder;
  const std::filesystem::path recipe = folder.path() / "r.yaml";
  std::ofstream(recipe) << "data:\n  tokens: t.bin\n  dtpye: uint8\n";
  const Ending ending = run_meshtrain_on_ranks(4, {"train", recipe});
  EXPECT_EQ(ending.status, 2) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: "), 1) << ending.err;
  EXPECT_EQ(count(ending.err, "meshtrain: " + recipe.string() + ":3:3: data.dtpye: unknown key"), 1) << ending.err;
}

TEST(RanksScript, ChecksItsArgumentsBeforeItStartsAnything) {
  const std::string usage = "; usage: tools/ranks N COMMAND [ARG...]\n";
  const auto ranks = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {source_folder() + "/tools/ranks"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_program(words);
  };
  for (const auto& [arguments, what] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "no number of ranks is given"},
           {{"3"}, "no command is given"},
           {{"abc", "echo"}, "abc is not a number of ranks, 1 or more"},
           {{"0", "echo", "x"}, "0 is not a number of ranks, 1 or more"},
           {{"-1", "echo"}, "-1 is not a number of ranks, 1 or more"},
           {{"2.5", "echo"}, "2.5 is not a number of ranks, 1 or more"}}) {
    const Ending ending = ranks(arguments);
    EXPECT_EQ(ending.status, 2);
    EXPECT_EQ(ending.err, "ranks: " + what + usage);
    EXPECT_EQ(ending.out, "");
  }
  Ending ending = ranks({"1", "no-such-program"});
  EXPECT_EQ(ending.status, 127);
  EXPECT_EQ(ending.err, "ranks: there is no command no-such-program\n");
  ending =
      run_program({"/usr/bin/env", "PATH=/nowhere", "/bin/bash", source_folder() + "/tools/ranks", "2", "/bin/true"});
  EXPECT_EQ(ending.status, 127);
  EXPECT_EQ(ending.err, "ranks: mpirun is not in PATH: run tools/setup, or load the module that has Open MPI\n");
  const Ending help = ranks({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out.starts_with("usage: tools/ranks N COMMAND [ARG...]")) << help.out;
  EXPECT_EQ(ranks({"1", "echo", "one"}).out, "one\n");
}

/// Makes `folder` hold links to all programs in PATH but ssh and rsh, with which mpirun starts ranks on other hosts.
void link_programs_without_ssh(const std::filesystem::path& folder) {
  std::istringstream path(std::getenv("PATH"));
  for (std::string from; std::getline(path, from, ':');) {
    std::error_code none;
    for (const auto& program : std::filesystem::directory_iterator(from, none)) {
      const std::string name = program.path().filename();
      if (name != "ssh" && name != "rsh") std::filesystem::create_symlink(program.path(), folder / name, none);
    }
  }
}

TEST(RanksScript, NeedsNeitherSshNorTheHostsOfAnAllocation) {
  const ScratchFolder programs;
  link_programs_without_ssh(programs.path());
  const std::string path = "PATH=" + programs.path().string();
  ASSERT_NE(run_program({"/usr/bin/env", path, "sh", "-c", "command -v ssh || command -v rsh"}).status, 0);
  for (const std::vector<std::string>& allocation :
       {std::vector<std::string>{},
        {"SLURM_JOBID=7", "SLURM_JOB_ID=7", "SLURM_NODELIST=other-1,other-2", "SLURM_TASKS_PER_NODE=1(x2)"}}) {
    const Ending ending = run_program(
        {"/usr/bin/env", path, source_folder() + "/tools/ranks", "2", "printenv", "OMPI_COMM_WORLD_SIZE"}, allocation);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.out, "2\n2\n");
  }
}

// Ranks that take no notice of the first signal end at the second.
TEST(RanksScript, EndsAtTheSecondSignal) {
  const ScratchFolder folder;
  const std::string started = folder.path() / "started";
  Program program(
      {source_folder() + "/tools/ranks", "2", "/bin/sh", "-c", "trap '' USR1; touch " + started + "; sleep 60 & wait"});
  while (!std::filesystem::exists(started)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto start = std::chrono::steady_clock::now();
  program.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  program.signal(SIGINT);
  const Ending ending = program.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, within(std::chrono::seconds(30)));
  EXPECT_NE(ending.status, 0);
  EXPECT_NE(ending.status, 75);
  EXPECT_TRUE(has(ending.err, "ranks: the ranks are asked to stop; a second Ctrl-C or SIGTERM ends them at once\n"));
}

// A request that comes while the ranks are starting reaches them once they listen.
TEST(RanksScript, AsksRanksWhenTheyListen) {
  const ScratchFolder folder;
  const std::string started = folder.path() / "started";
  Program program({source_folder() + "/tools/ranks", "2", "/bin/bash", "-c",
                   "touch " + started + "; sleep 1; trap 'exit 75' USR1; while :; do sleep 0.1; done"});
  while (!std::filesystem::exists(started)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().status, 75);
}

TEST(RanksScript, EndsACommandThatDoesNotListen) {
  const ScratchFolder folder;
  const std::string started = folder.path() / "started";
  Program program({source_folder() + "/tools/ranks", "2", "/bin/sh", "-c", "touch " + started + "; exec sleep 600"});
  while (!std::filesystem::exists(started)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  program.signal(SIGTERM);
  const Ending ending = program.wait();
  EXPECT_NE(ending.status, 0);
  EXPECT_TRUE(has(ending.err, "ranks: the command does not react to the request to stop, so it is ended\n"))
      << ending.err;
}

TEST(RanksScript, PassesQuitOnToTheRanks) {
  const ScratchFolder folder;
  const std::string started = folder.path() / "started";
  Program program({source_folder() + "/tools/ranks", "2", "/usr/bin/env", "--default-signal=QUIT", "/bin/bash", "-c",
                   "trap 'exit 3' QUIT; touch " + started + "; while :; do sleep 0.1; done"});
  while (!std::filesystem::exists(started)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.signal(SIGQUIT);
  EXPECT_EQ(program.wait().status, 3);
}

TEST(RanksScript, PassesOnTheCommandsInputAndStatus) {
  const Ending ending = run_program({"/bin/sh", "-c", "echo text | '" + source_folder() + "/tools/ranks' 2 cat"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.out, "text\n");
  EXPECT_EQ(run_program({source_folder() + "/tools/ranks", "2", "/bin/sh", "-c", "exit 5"}).status, 5);
}

}  // namespace
}  // namespace meshtrain::testing
