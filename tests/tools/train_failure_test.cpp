#include <chrono>
#include <fstream>
#include <thread>

#include "tests/tools/train_program.h"

// Errors at run time: status 1, one line from one rank, and all ranks end.
namespace meshtrain::testing {
namespace {

class TrainFailure : public TrainProgram {};

/// Returns a shell line: no file of rank 0 may be longer than `blocks` of 512 bytes, an error that write() reports like
/// a full disk.
std::string limit_files(int blocks) {
  return "export MESHTRAIN_WINDOW_MIB=0; [ $OMPI_COMM_WORLD_RANK != 0 ] || ulimit -f " + std::to_string(blocks);
}

TEST_F(TrainFailure, FullDiskWhileWritingMetrics) {
  const std::string message = complaint(2, {"--mesh", "dp=2", "--set", "train.steps=1000"}, 1, limit_files(8));
  EXPECT_TRUE(has(message,
                  "rank 0 (dp=0 cp=0 tp=0): cannot write " + (run_dir / "metrics.jsonl").string() + ": File too large"))
      << message;
}

TEST_F(TrainFailure, FullDiskWhileWritingTheRecipe) {
  const std::string message = complaint(2, {"--mesh", "dp=2"}, 1, limit_files(1));
  EXPECT_EQ(message, "rank 0: cannot write " + (run_dir / "recipe.yaml").string() + ": File too large");
}

TEST_F(TrainFailure, FullDiskWhileExporting) {
  const std::filesystem::path folder = path("weights");
  const Ending ending =
      train(2, {"--mesh", "tp=2", "--set", "train.export=" + folder.string(), "--log-level", "off"}, limit_files(8));
  const std::string log = content(run_dir / "console.log");
  EXPECT_TRUE(has(log, " error: the checkpoint of step 4 was not written: ")) << "and the export is tried\n" << log;
  const std::string message = complaint(ending, 1);
  EXPECT_TRUE(has(message, "rank 0") && has(message, "cannot write " + folder.string())) << message;
  EXPECT_TRUE(has(message, ": File too large")) << message;
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_FALSE(std::filesystem::exists(folder.string() + ".partial"));
  expect_steps(metrics(), 4);
}

TEST_F(TrainFailure, FullDiskForOffload) {
  const std::filesystem::path folder = path("shards");
  const std::string message =
      complaint(2, {"--mesh", "dp=2", "--set", "parallel.fsdp.offload={to: disk, path: " + folder.string() + "}"}, 1,
                "[ $OMPI_COMM_WORLD_RANK != 1 ] || ulimit -f 64");
  EXPECT_TRUE(has(message, "rank 1")) << message;
  EXPECT_TRUE(has(message, "offload to disk: cannot reserve ") && has(message, " in " + folder.string())) << message;
  EXPECT_TRUE(has(message, "File too large: make room, or give a folder on another disk")) << message;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  expect_steps(metrics(), 0);
}

TEST_F(TrainFailure, TokenFileThatIsCutShortMeanwhile) {
  Program program(command(1, {"--set", "train.steps=1000000"}));
  wait_for_steps(1);
  std::filesystem::resize_file(path("tokens.bin"), 100);
  const std::string message = complaint(program.wait(), 1);
  EXPECT_TRUE(has(message, "cannot read " + path("tokens.bin").string() +
                               ": it has 100 bytes, and had 1700 when it was opened: it was cut short since, "
                               "for tokens "))
      << message;
  EXPECT_TRUE(has(message, "rank ") && has(message, ", in sample ")) << message;
}

// The file is too large for a complete check at the start: only one rank reads a wrong id in its second block.
TEST_F(TrainFailure, IdBeyondTheVocabularyThatOneRankMeets) {
  write("tokens.bin", "");
  std::filesystem::resize_file(path("tokens.bin"), int64_t{300} << 20);
  std::fstream file(path("tokens.bin"), std::ios::in | std::ios::out | std::ios::binary);
  constexpr int64_t kLength = 512, kSample = 4 * 32 + 30;  // the fifth step, the last sample but one of 32
  constexpr int64_t kToken = kSample * kLength + 7;
  static_assert(kToken > 64 << 10 && kToken < 128 << 10);
  file.seekp(kToken);
  file.put(static_cast<char>(200));
  file.close();
  const std::string message = complaint(2,
                                        {"--mesh", "dp=2", "--set", "data.layout=stream", "--set",
                                         "train={sequence_length: 512, global_batch: 32, micro_batch: 1, steps: 8}"},
                                        1);
  EXPECT_EQ(message, "rank 1 (dp=1 cp=0 tp=0): " + path("tokens.bin").string() + ": token " + std::to_string(kToken) +
                         " has id 200, beyond the vocabulary of 64: the file was made for another model, or "
                         "data.dtype is wrong");
  expect_steps(metrics(), 4);
}

TEST_F(TrainFailure, LossThatIsNotFinite) {
  const std::string message =
      complaint(3, {"--mesh", "dp=3", "--set", "train.global_batch=3", "--set", "optimizer.learning_rate=1e38"}, 1);
  EXPECT_TRUE(has(message, "step 2: loss ")) << message;
  EXPECT_TRUE(has(message, "the first gradient that is not finite is that of model.")) << message;
  expect_steps(metrics(), 1);
  EXPECT_FALSE(metrics()[0].contains("skipped"));
}

TEST_F(TrainFailure, StepsThatAreSkippedForever) {
  const std::string message = complaint(2,
                                        {"--mesh", "dp=2", "--set", "train.steps=100", "--set", "train.non_finite=skip",
                                         "--set", "train.max_skipped=5", "--set", "optimizer.learning_rate=1e38"},
                                        1);
  EXPECT_TRUE(has(message, "step 6: loss ")) << message;
  EXPECT_TRUE(has(message, "; 5 steps in a row were skipped, as many as train.max_skipped allows")) << message;
  expect_steps(metrics(), 5);
  for (const nlohmann::json& step : metrics()) EXPECT_EQ(step.at("skipped"), step.at("step") > 1);
}

}  // namespace
}  // namespace meshtrain::testing
