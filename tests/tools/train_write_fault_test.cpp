// The disk of a run fails while it writes checkpoints, metrics, shards or an export.

#include <filesystem>
#include <fstream>

#include "tests/tools/train_resume.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

TEST_F(TrainResume, ShardsThatTheDiskLostEndTheRunAtThatStep) {
  const Words offload = {
      "--set", "parallel.fsdp={mode: full_shard, offload: {to: disk, path: " + path("shards").string() + "}}"};
  Words saving = offload, resuming = offload;
  saving.insert(saving.end(), kEvery3.begin(), kEvery3.end());
  resuming.insert(resuming.end(), kResume.begin(), kResume.end());
  run(2, "dp=2", 3, saving);
  const auto before = contents(checkpoints() / "step-00000003");
  resuming.insert(resuming.end(), {"--mesh", "dp=2", "--set", "train.steps=6"});
  const std::string message = complaint(
      2, resuming, 1, "[ $OMPI_COMM_WORLD_RANK != 1 ] || " + with_faults("sync_file_range:meshtrain-shards:ENOSPC"));
  EXPECT_TRUE(has(message, "rank 1 (dp=1 cp=0 tp=0): step 4, ") &&
              has(message, "offload to disk: some of the shards could not be written"))
      << message;
  EXPECT_TRUE(has(message, " in " + path("shards").string() + ": No space left on device")) << message;
  EXPECT_LE(metrics().size(), 4u) << "rank 0 may have recorded it";
  EXPECT_EQ(names(), Words{"step-00000003"});
  EXPECT_EQ(contents(checkpoints() / "step-00000003"), before);
}

// After the export has read all weights, the disk is checked for the last time.
TEST_F(TrainResume, ShardsThatTheDiskLostAreNotExported) {
  const fs::path weights = path("weights");
  const Words words = {"--set", "train.export=" + weights.string(), "--set",
                       "parallel.fsdp={mode: full_shard, offload: {to: disk, path: " + path("shards").string() + "}}"};
  EXPECT_EQ(train(1, words, "export MESHTRAIN_FAULTS_LOG=" + path("calls").string() + "; " + with_faults("")).status,
            0);
  std::ifstream calls(path("calls"));
  int num_calls = 0;
  for (std::string line; std::getline(calls, line);) num_calls += line.starts_with("sync_file_range ") ? 1 : 0;
  ASSERT_GT(num_calls, 0);
  fs::remove_all(run_dir);
  fs::remove_all(weights);
  const Ending ending = train(1, words, with_faults("sync_file_range::ENOSPC:" + std::to_string(num_calls - 1)));
  EXPECT_TRUE(has(complaint(ending, 1), "some of the shards could not be written, and are lost")) << ending.err;
  EXPECT_FALSE(fs::exists(weights));
}

TEST_F(TrainResume, AFullDiskEndsTheRunWithTheLastCheckpointWhole) {
  const std::string small_disk = "export MESHTRAIN_WINDOW_MIB=0; [ $OMPI_COMM_WORLD_RANK != 1 ] || ulimit -f 16";
  const Words every2 = {"--mesh", "dp=2", "--set", "checkpoint.every=2"};
  const std::string first = complaint(2, every2, 1, small_disk);
  EXPECT_TRUE(has(first, "the checkpoint of step 2 was not written: rank 1") && has(first, ": File too large"))
      << first;
  EXPECT_EQ(names(), Words{});

  run_dir = path("second");
  run(2, "dp=2", 2, {"--set", "checkpoint.every=2"});
  const auto before = contents(checkpoints() / "step-00000002");
  Words resume = every2;
  resume.insert(resume.end(), {"--resume", "--set", "checkpoint.keep_last=1"});
  const std::string second = complaint(2, resume, 1, small_disk);
  EXPECT_TRUE(has(second, "the checkpoint of step 4 was not written: rank 1")) << second;
  EXPECT_EQ(names(), Words{"step-00000002"});
  EXPECT_EQ(contents(checkpoints() / "step-00000002"), before);
}

// The first rename tests the folder, as does the second, after the last step.
TEST_F(TrainResume, AnExportThatFailsLosesNothingOfARunWithoutCheckpoints) {
  const std::string weights = path("weights").string();
  const Words words = {"--mesh", "dp=auto", "--set", "train.export=" + weights};
  const Ending failed = train(2, words, with_faults("rename:/weights:EXDEV:1"));
  EXPECT_TRUE(has(complaint(failed, 1), "cannot export to " + weights + ": its folder cannot be renamed: "))
      << failed.err;
  EXPECT_TRUE(has(failed.out, "checkpoint of step 4 written")) << failed.out;
  Words again = words;
  again.emplace_back("--resume");
  const Ending exported = train(2, again);
  EXPECT_EQ(exported.status, 0) << exported.err;
  EXPECT_TRUE(has(exported.out, "the checkpoint has all steps of train.steps")) << exported.out;
  EXPECT_TRUE(std::filesystem::exists(path("weights/model.safetensors")));
}

}  // namespace
}  // namespace meshtrain::testing
