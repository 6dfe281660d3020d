#include <gtest/gtest.h>

#include "tests/support/messages.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

TEST(Help, IsThereForEveryCommand) {
  for (const Words& command : {Words{},
                               {"train"},
                               {"verify"},
                               {"plan"},
                               {"reproduce"},
                               {"mesh"},
                               {"data"},
                               {"data", "prepare"},
                               {"data", "inspect"},
                               {"checkpoint"},
                               {"checkpoint", "inspect"},
                               {"checkpoint", "verify"},
                               {"checkpoint", "export"},
                               {"checkpoint", "import"},
                               {"generate"},
                               {"evaluate"},
                               {"recipe"},
                               {"diagnose"},
                               {"report"}}) {
    Words words = command;
    words.push_back("--help");
    std::string usage = "Usage: meshtrain ";
    for (const std::string& word : command) usage += word + " ";
    const Ending ending = run_meshtrain(words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.err, "");
    EXPECT_NE(ending.out.find(usage + "[OPTIONS]"), std::string::npos) << usage << " is not in\n" << ending.out;
    EXPECT_NE(ending.out.find("--help"), std::string::npos);
    const bool has_commands =
        command.empty() || (command.size() == 1 && (command[0] == "data" || command[0] == "checkpoint"));
    EXPECT_EQ(has(ending.out, "--log-level LEVEL=info"), !has_commands) << ending.out;
  }
}

TEST(Help, SaysTheVersion) {
  const Ending ending = run_meshtrain({"--version"});
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.out.rfind("meshtrain 0.", 0), 0u) << ending.out;
}

TEST(OpenMp, ThreadsSpinBrieflyUnlessAPolicyIsSet) {
  const auto spins_briefly = [](const Words& environment) {
    Words words = {"/usr/bin/env", "OMP_DISPLAY_ENV=VERBOSE"};
    words.insert(words.end(), environment.begin(), environment.end());
    words.insert(words.end(), {build_folder() + "/meshtrain", "--version"});
    const Ending ending = run_program(words);
    EXPECT_TRUE(has(ending.err, "GOMP_SPINCOUNT = '")) << ending.err;
    return has(ending.err, "GOMP_SPINCOUNT = '3000'");
  };
  EXPECT_TRUE(spins_briefly({"OMP_NUM_THREADS=2"})) << "also on one core, which the threads share";
  EXPECT_FALSE(spins_briefly({"OMP_NUM_THREADS=1"})) << "no other thread waits";
  EXPECT_FALSE(spins_briefly({"OMP_NUM_THREADS=2", "OMP_WAIT_POLICY=active"}));
  EXPECT_FALSE(spins_briefly({"OMP_NUM_THREADS=2", "GOMP_SPINCOUNT=77"}));
}

TEST(Help, DoesNotStartMpi) {
  // The environment of a launcher that does not exist: MPI could only fail.
  const Ending ending = run_meshtrain({"mesh", "--mesh", "dp=2"}, {"PMI_RANK=0", "PMI_SIZE=4"});
  EXPECT_EQ(ending.status, 0) << ending.err;
}

TEST(Arguments, AreExplained) {
  EXPECT_EQ(only_complaint(run_meshtrain({})),
            "give a command: train, verify, plan, recipe, reproduce, mesh, data, checkpoint, generate, evaluate, "
            "diagnose, report; "
            "meshtrain --help says what they do");
  EXPECT_EQ(only_complaint(run_meshtrain({"trian"})),
            "meshtrain does not know trian; did you mean train?: see meshtrain --help");
  EXPECT_EQ(only_complaint(run_meshtrain({"checkpoint", "exprt", "run", "out"})),
            "meshtrain checkpoint does not know exprt; did you mean export?: see meshtrain checkpoint --help");
  EXPECT_EQ(only_complaint(run_meshtrain({"mesh", "--mesh", "dp=2", "--rank", "2"})),
            "meshtrain mesh does not know --rank; did you mean --ranks?: see meshtrain mesh --help");
  EXPECT_EQ(only_complaint(run_meshtrain({"train", "recipe.yaml", "--resume=10"})),
            "meshtrain train: --resume takes no value: leave out =10, or give --resume-step 10 to continue from that "
            "checkpoint");
  EXPECT_EQ(only_complaint(run_meshtrain({"verify", "recipe.yaml", "--shrink=no"})),
            "meshtrain verify: --shrink takes no value: leave out =no");
  EXPECT_EQ(only_complaint(run_meshtrain({"mesh"})), "give a recipe or --mesh, as in --mesh dp=2,tp=2,cp=2");
  EXPECT_EQ(only_complaint(run_meshtrain({"checkpoint"})),
            "meshtrain checkpoint: give one of its commands: inspect, verify, export, import: see meshtrain checkpoint "
            "--help");
  EXPECT_TRUE(
      has(only_complaint(run_meshtrain({"data"})), "meshtrain data: give one of its commands: prepare, inspect"));
  for (const char* word : {"sft", "finetune", "fine-tune"}) {
    EXPECT_EQ(only_complaint(run_meshtrain({word, "recipe.yaml"})),
              "meshtrain does not know " + std::string(word) +
                  "; here it is train, with model.hf: FOLDER; data prepare "
                  "--chat makes tokens of conversations (docs/data.md): see meshtrain --help");
  }
  EXPECT_NE(only_complaint(run_meshtrain({"mesh", "--mesh", "dp=2", "--ranks", "two"})).find("--ranks"),
            std::string::npos);
}

TEST(Arguments, WhatOneProcessDoesIsRefusedOnSeveral) {
  for (const Words& command : {Words{"data", "prepare", "--bytes", "a", "--out", "b"},
                               {"data", "inspect", "a"},
                               {"checkpoint", "inspect", "a"},
                               {"checkpoint", "verify", "a"},
                               {"checkpoint", "export", "a", "b"},
                               {"checkpoint", "import", "a", "b"},
                               {"report", "a"}}) {
    const std::string name = "meshtrain " + command[0] + (command[0] == "report" ? "" : " " + command[1]);
    EXPECT_EQ(only_complaint(run_meshtrain(command, {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"})),
              name + " runs in one process, but the launcher started 2: run it without mpirun or srun");
    const Ending other = run_meshtrain(command, {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1"});
    EXPECT_EQ(other.status, 2);
    EXPECT_EQ(other.err, "");
  }
}

TEST(Arguments, AreExplainedByOneRank) {
  EXPECT_NE(only_complaint(run_meshtrain({"trian"}, {"OMPI_COMM_WORLD_RANK=0"})), "");
  const Ending other = run_meshtrain({"trian"}, {"OMPI_COMM_WORLD_RANK=1"});
  EXPECT_EQ(other.status, 2);
  EXPECT_EQ(other.err, "");
}

}  // namespace
}  // namespace meshtrain::testing
