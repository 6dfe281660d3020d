// `meshtrain train --check` looks at the machine that it runs on, and changes nothing.

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class TrainCheck : public TrainProgram {
 protected:
  Ending check(Words words) const {
    words.insert(words.begin(), "--check");
    return train(1, words);
  }
};

TEST_F(TrainCheck, SaysWhatCheckpointsAndAStepTakeAndWhatItCannotKnow) {
  const Ending ending = check({"--set", "checkpoint.every=1", "--set", "checkpoint.keep_last=2"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  // 64 x 32 of the embedding, 4 x 32 x 32 of attention, 3 x 32 x 48 of the feed-forward, 3 x 32 of norms; 12 bytes
  // each.
  EXPECT_TRUE(has(ending.out, "\n3 checkpoints of 127.1 KiB, together 381.4 KiB; the disk of ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\na step needs ") && has(ending.out, "; this machine has ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\nnot checked, as only the ranks can: that hosts have the same files")) << ending.out;
  EXPECT_FALSE(fs::exists(run_dir)) << "a check makes nothing";
  EXPECT_TRUE(has(check({}).out, "\na checkpoint, should the run be stopped, of 127.1 KiB; the disk of "));
}

TEST_F(TrainCheck, ComparesAStepWithTheRoomOfAGpu) {
  const auto on = [&](const std::string& memory) {
    write("gpu.yaml",
          "device: cuda\nproduct_flops: {fp32: 6.0e13}\nmemory_bandwidth: 3.0e12\non_host: {bandwidth: "
          "1.0e11}\namong_hosts: {bandwidth: 1.0e10}\nmemory: " +
              memory + "\n");
    return check({"--plan", "--machine", path("gpu.yaml")});
  };
  const Ending fits = on("85899345920");
  ASSERT_EQ(fits.status, 0) << fits.err;
  EXPECT_TRUE(has(fits.out, "on the fullest rank, and the runtime 2 GiB more, of 80 GiB of a GPU\n")) << fits.out;
  EXPECT_EQ(count(fits.out, "plan: "), 1);
  EXPECT_TRUE(has(fits.out, "; times: a machine file that names no source\n")) << fits.out;
  const Ending near = on("2147483648");  // the runtime's alone
  EXPECT_EQ(near.status, 0) << near.err;
  EXPECT_TRUE(has(near.out, "\nwarning: a step needs ")) << near.out;
  EXPECT_TRUE(has(complaint(on("1073741824"), 2), " of 1 GiB of a GPU: a rank needs less with "));
}

TEST_F(TrainCheck, RefusesARunDirectoryThatTheRunCouldNotHave) {
  write("file", "");
  run_dir = path("file") / "run";
  EXPECT_EQ(complaint(check({}), 2),
            "the run directory " + run_dir.string() + " cannot be made: " + path("file").string() + " is not a folder");
  run_dir = path("run");
  ASSERT_EQ(train(1, {"--set", "train.steps=1"}).status, 0);
  const auto before = contents(run_dir);
  EXPECT_EQ(complaint(check({}), 2), "the run directory " + run_dir.string() +
                                         " holds a run; continue it with --resume, choose another --run-dir, or remove "
                                         "it");
  EXPECT_TRUE(has(complaint(check({"--set", "data.tokens=" + path("none.bin").string()}), 2), "none.bin"))
      << "what is wrong with a changed recipe comes first";
  EXPECT_EQ(check({"--resume"}).status, 0);
  EXPECT_EQ(contents(run_dir), before);
  if (::geteuid() == 0) return;  // root may write anywhere
  fs::create_directory(path("closed"));
  ::chmod(path("closed").c_str(), 0500);
  run_dir = path("closed") / "run";
  EXPECT_TRUE(has(complaint(check({}), 2), " cannot be written: " + path("closed").string() + ": Permission denied"));
}

TEST_F(TrainCheck, RefusesTextInThePlaceOfTokens) {
  write("pages.jsonl", R"({"text": "A page that nobody has made tokens of, although a run is to begin with it"})"
                       "\n");
  const std::string file = path("pages.jsonl");
  const Words words = {"--set", "data.tokens=" + file, "--set", "data.dtype=uint16"};
  const std::string expected =
      file + " looks like JSON Lines text, not token ids: make tokens of it with meshtrain data prepare --text " + file;
  for (const Ending& ending : {check(words), train(1, words)}) EXPECT_TRUE(has(ending.err, expected)) << ending.err;
}

TEST_F(TrainCheck, RefusesATokenizerThatDoesNotFitTheModel) {
  const std::string gpt2 = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  const Words words = {"--set", "data.tokenizer=" + gpt2};
  const std::string expected = "--set data.tokenizer=" + gpt2 + ": " + gpt2 +
                               ": its ids go up to 1100, those of the model to 63: give the tokenizer that the model "
                               "was trained with";
  EXPECT_EQ(complaint(check(words), 2), expected);
  EXPECT_EQ(complaint(2, words), expected);
  EXPECT_EQ(check({"--set", "data.tokenizer=" + gpt2, "--set", "model.vocab_size=1101"}).status, 0);
  EXPECT_EQ(check({"--set", "data.tokenizer=bytes"}).status, 0) << "the model may have the lower bytes alone";
}

TEST_F(TrainCheck, RefusesCheckpointsThatTheDiskCannotHold) {
  // 6e7 x 65536 weights of the embedding: 43 TiB with their optimizer's state, on any disk of a test machine.
  const Words huge = {"--set", "model.hidden_size=65536", "--set", "model.vocab_size=60000000",
                      "--set", "checkpoint.every=1"};
  const std::string refused = complaint(check(huge), 2);
  EXPECT_TRUE(has(refused, "checkpoint.every: a checkpoint takes ") && has(refused, " free: choose another --run-dir"))
      << refused;
}

}  // namespace
}  // namespace meshtrain::testing
