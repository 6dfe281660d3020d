// Ranks of one launch that are not the same program with the same arguments.

#include <fstream>
#include <iterator>

#include "mesh/host_map.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class SameLaunch : public TrainProgram {
 protected:
  /// Runs a rank of each of two commands in one launch.
  static Ending launch(const Words& first, const Words& second) {
    Words words = {"/usr/bin/env",
                   "OMPI_ALLOW_RUN_AS_ROOT=1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                   "OMP_NUM_THREADS=1",
                   "OMPI_MCA_plm=isolated",
                   "mpirun",
                   "--quiet",
                   "--oversubscribe",
                   "--bind-to",
                   "none",
                   "-n",
                   "1"};
    words.insert(words.end(), first.begin(), first.end());
    words.insert(words.end(), {":", "-n", "1"});
    words.insert(words.end(), second.begin(), second.end());
    return run_program(words);
  }

  Words command(const std::string& file, const std::string& name, const Words& more = {}) const {
    Words words = {file, name, recipe, "--mesh", "dp=2"};
    if (name == "train") words.insert(words.end(), {"--run-dir", run_dir});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  const std::string program = build_folder() + "/meshtrain";
  const std::string first = "rank 0 on " + host_name(), second = "rank 1 on " + host_name();
};

TEST_F(SameLaunch, OtherCommandsAreRefused) {
  EXPECT_EQ(complaint(launch(command(program, "train"), command(program, "verify")), 2),
            "the ranks of one launch are given different commands: " + first + " has \"train\" where " + second +
                " has \"verify\": start all ranks with the same command");
  EXPECT_FALSE(fs::exists(run_dir));
}

TEST_F(SameLaunch, OtherArgumentsAreRefused) {
  const Words more = {"--set", "train.steps=2"};
  EXPECT_EQ(complaint(launch(command(program, "train"), command(program, "train", more)), 2),
            "the ranks of one launch are given different commands: " + first + " has no further argument where " +
                second + " has \"" + run_dir.string() + " --set\": start all ranks with the same command");
}

TEST_F(SameLaunch, AnotherBuildIsRefused) {
  std::ifstream file(program, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  const std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);  // of a build id of 20 bytes
  const size_t id = bytes.find(note) + note.size();
  ASSERT_LT(id, bytes.size());
  bytes[id] = static_cast<char>(bytes[id] ^ 1);
  const std::string other = path("another");
  std::ofstream(other, std::ios::binary) << bytes;
  fs::permissions(other, fs::perms::owner_all);
  const std::string message = complaint(launch(command(program, "train"), command(other, "train")), 2);
  EXPECT_EQ(message.rfind("the ranks of one launch are different builds: " + first + " is " + program + " (build ", 0),
            0u)
      << message;
  EXPECT_TRUE(has(message, "), " + second + " is " + other + " (build ")) << message;
  EXPECT_TRUE(has(message, "): start the same build on all hosts")) << message;
}

// It waits for a rank that ends after 25 s without MPI.
TEST_F(SameLaunch, ARankThatNeverStartsIsWaitedForWithAWord) {
  const Ending ending = launch(command(program, "train"), {"/bin/sh", "-c", "sleep 25; exit 3"});
  EXPECT_NE(ending.status, 0);
  EXPECT_EQ(count(ending.late, "meshtrain: warning: " + first + " has waited 20 s for the other 1 rank to start: "), 1)
      << ending.err;
}

}  // namespace
}  // namespace meshtrain::testing
