// A run ends while a disk is slow: the reason comes first, whatever is still written or removed.
#include <chrono>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;

class TrainEnding : public TrainProgram {
 protected:
  /// Makes calls of a rank fail or last longer (tests/support/faults).
  static std::string faults_on(int rank, const std::string& faults) {
    return "[ ${OMPI_COMM_WORLD_RANK:-0} != " + std::to_string(rank) + " ] || export LD_PRELOAD=" + build_folder() +
           "/tests/libfaults.so MESHTRAIN_FAULTS='" + faults + "'\n";
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(run_dir / "checkpoints")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) names.push_back(name);
    }
    return names;
  }
};

TEST_F(TrainEnding, AClosedStdoutEndsNoRun) {
  Words words = {"/bin/bash", "-c", "\"$@\" | head -n 1; echo ${PIPESTATUS[0]}", "bash"};
  const Words run = command(1, {"--set", "train.steps=6"});
  words.insert(words.end(), run.begin(), run.end());
  const Ending ending = run_program(words);
  EXPECT_TRUE(ending.out.ends_with("\n0\n")) << ending.out << ending.err;
  expect_steps(metrics(), 6);
  EXPECT_TRUE(has(testing::content(run_dir / "console.log"), " info: step 6/6 "));
}

TEST_F(TrainEnding, AFullDiskIsToldBeforeItsFolderIsRemoved) {
  const std::string message = complaint(
      2, {"--mesh", "dp=2", "--set", "checkpoint.every=2"}, 1,
      faults_on(0, "unlink:step-00000002.*.tmp/:delay=3500:0:1") + faults_on(1, "pwrite:step-00000002.*.tmp/:ENOSPC"));
  EXPECT_TRUE(has(message, "the checkpoint of step 2 was not written: rank 1") && has(message, ": No space left"))
      << message;
  EXPECT_EQ(checkpoints(), Words{});
}

TEST_F(TrainEnding, ALossThatIsNotFiniteIsToldWhileACheckpointIsWritten) {
  const std::string message =
      complaint(2, {"--mesh", "dp=2", "--set", "checkpoint.every=1", "--set", "optimizer.learning_rate=1e38"}, 1,
                faults_on(0, "pwrite:step-00000001.*.tmp/:delay=4000:0:1"));
  EXPECT_TRUE(has(message, "step 2: loss ")) << message;
}

TEST_F(TrainEnding, ARunThatIsStoppedRemovesItsOldCheckpointInPeace) {
  EXPECT_EQ(train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4"}).status, 0);
  const Ending ending = train(2,
                              {"--mesh", "dp=2", "--resume", "--set", "train.steps=1000000", "--set",
                               "train.time_limit=0.5", "--set", "checkpoint={every: 1000000, keep_last: 1}"},
                              faults_on(0, "unlink:step-00000004:delay=3500:0:1"));
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_FALSE(has(ending.err, "MPI_ABORT")) << ending.err;
  ASSERT_EQ(checkpoints().size(), 1u);
  EXPECT_TRUE(has(ending.out, "stopped by train.time_limit after step " + std::to_string(metrics().size())))
      << ending.out;
}

TEST_F(TrainEnding, ARankThatFailsAloneEndsTheJobWhileItsCheckpointIsWritten) {
  const Clock::time_point start = Clock::now();
  const std::string message =
      complaint(2, {"--mesh", "dp=2", "--set", "checkpoint.every=1"}, 1,
                faults_on(0, "write:metrics.jsonl:ENOSPC:1;pwrite:step-00000001.*.tmp/:delay=15000:0:1"));
  EXPECT_TRUE(has(message, "rank 0 (dp=0 cp=0 tp=0): cannot write " + (run_dir / "metrics.jsonl").string())) << message;
  EXPECT_LT(Clock::now() - start, within(std::chrono::seconds(12)));
}

TEST_F(TrainEnding, ARankWhoseDiskHangsSaysSo) {
  const Ending ending = train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4"},
                              "export MESHTRAIN_SLOW_WRITE=0.5\n" + faults_on(1, "fsync:rank-00001:delay=1800:0:1") +
                                  faults_on(0, "fsync:manifest.json:delay=1800:0:1"));
  EXPECT_EQ(ending.status, 0) << ending.err;
  for (const std::string file : {"rank-00001.safetensors", "manifest.json"}) {
    const std::string rank = file.starts_with("rank") ? "rank 1" : "rank 0";
    EXPECT_GE(count(ending.err, "/" + file + " after "), 2) << ending.err;
    EXPECT_TRUE(has(ending.err, "meshtrain: warning: " + rank)) << ending.err;
  }
  EXPECT_FALSE(has(ending.err, "/rank-00000.safetensors after ")) << "its file is durable\n" << ending.err;
}

TEST_F(TrainEnding, OneRankSaysWhyItEndsBeforeItWaitsForItsCheckpoint) {
  const std::filesystem::path err = path("err");
  std::thread run([&] {
    train(1, {"--set", "checkpoint.every=1", "--set", "optimizer.learning_rate=1e38"},
          faults_on(0, "pwrite:step-00000001.*.tmp/:delay=4000:0:1") + "exec 2>" + err.string());
  });
  EXPECT_TRUE(wait_until([&] { return has(content(err), "meshtrain: "); }));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_TRUE(is_running()) << "the message came when all was over";
  run.join();
  EXPECT_EQ(count(content(err), "meshtrain: step 2: loss "), 1) << content(err);
}

}  // namespace
}  // namespace meshtrain::testing
