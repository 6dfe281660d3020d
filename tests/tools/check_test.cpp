// `meshtrain train --check` checks the machine that it runs on and changes nothing. It refuses whatever a start
// refuses.

#include <fcntl.h>
#include <sys/file.h>
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

  /// Expects that a check and a start on `ranks` ranks refuse `words` with the same line, which contains `part`.
  /// Neither may make a run directory.
  void expect_refused_alike(const Words& words, const std::string& part, int ranks = 1) const {
    SCOPED_TRACE(::testing::PrintToString(words));
    const bool existed = fs::exists(run_dir);
    Words checked = words;
    checked.emplace_back("--check");
    const std::string by_start = complaint(ranks, words);
    EXPECT_EQ(complaint(ranks, checked), by_start);
    EXPECT_TRUE(has(by_start, part)) << by_start;
    EXPECT_EQ(fs::exists(run_dir), existed);
  }
};

TEST_F(TrainCheck, SaysWhatCheckpointsAndAStepTakeAndWhatItCannotKnow) {
  const Ending ending = check({"--set", "checkpoint.every=1", "--set", "checkpoint.keep_last=2"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  // 64 x 32 of the embedding, 4 x 32 x 32 of attention, 3 x 32 x 48 of the feed-forward, 3 x 32 of norms; 12 bytes
  // each.
  EXPECT_TRUE(has(ending.out, "\n3 checkpoints of 127.1 KiB, together 381.4 KiB; the disk of ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\na step needs ") && has(ending.out, "; this machine has ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\nnot checked without ranks: that hosts have the same files")) << ending.out;
  EXPECT_FALSE(fs::exists(run_dir)) << "a check makes nothing";
  EXPECT_TRUE(has(check({}).out, "\na checkpoint, if the run is stopped, of 127.1 KiB; the disk of "));
}

TEST_F(TrainCheck, WarnsOfKeysOfAPipelineWithoutOneAndOfOneMicroBatch) {
  const Ending without = check({"--mesh", "dp=1", "--set", "parallel.pipeline.schedule=1f1b"});
  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_EQ(without.err,
            "meshtrain: warning: parallel.pipeline.schedule has no effect: mesh dp=1,cp=1,tp=1 has no pp\n");
  const Ending one = check({"--mesh", "pp=2", "--set", "model.num_hidden_layers=2", "--set", "train.micro_batch=4",
                            "--set", "train.global_batch=4"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_TRUE(has(one.err, "meshtrain: warning: a step has 1 micro-batch, so the ranks of the pipeline wait for "))
      << one.err;
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
  EXPECT_TRUE(has(fits.out, "; times: a machine file without a source\n")) << fits.out;
  const Ending near = on("2147483648");  // the runtime's alone
  EXPECT_EQ(near.status, 0) << near.err;
  EXPECT_TRUE(has(near.err, "meshtrain: warning: a step needs ")) << near.err;
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
      file + " looks like JSON Lines text, not token ids: make tokens from it with meshtrain data prepare --text " +
      file;
  for (const Ending& ending : {check(words), train(1, words)}) EXPECT_TRUE(has(ending.err, expected)) << ending.err;
}

TEST_F(TrainCheck, RefusesATokenizerThatDoesNotFitTheModel) {
  const std::string gpt2 = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  const Words words = {"--set", "data.tokenizer=" + gpt2};
  const std::string expected =
      "--set data.tokenizer=" + gpt2 + ": " + gpt2 +
      ": its ids go up to 1100, but those of the model up to 63: give the tokenizer that the model "
      "was trained with";
  EXPECT_EQ(complaint(check(words), 2), expected);
  EXPECT_EQ(complaint(2, words), expected);
  EXPECT_EQ(check({"--set", "data.tokenizer=" + gpt2, "--set", "model.vocab_size=1101"}).status, 0);
  EXPECT_EQ(check({"--set", "data.tokenizer=bytes"}).status, 0) << "the model may have the lower bytes alone";
}

TEST_F(TrainCheck, RefusesWhatAStartRefusesInTheSameLine) {
  const auto hf = [&](const std::string& name) {
    fs::create_directory(path(name));
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy(source_folder() + "/tests/fixtures/llama_gqa_tied/" + file, path(name) / file);
    }
    return path(name);
  };
  fs::remove(hf("no_weights") / "model.safetensors");
  nlohmann::json config = nlohmann::json::parse(content(hf("other_shape") / "config.json"));
  config["intermediate_size"] = config.at("intermediate_size").get<int>() + 1;
  write("other_shape/config.json", config.dump());
  write("short.bin", std::string(17, '\1'));
  write("masked.bin", std::string(100 * 17, '\0'));
  const std::string none = path("none/file").string();
  struct BadInput {
    Words words;
    std::string part;
    int ranks = 1;
  };
  const std::vector<BadInput> table = {
      {{"--set", "train.stpes=3"}, "unknown key"},
      {{"--set", "train.global_batch=3", "--set", "train.micro_batch=2"}, "is not a multiple of"},
      {{"--set", "parallel.fsdp.offload.path=/tmp"}, "needs parallel.fsdp.offload.to: disk"},
      {{"--mesh", "dp=2"}, "needs 2 ranks, but 3 were started", 3},
      {{"--mesh", "tp=3"}, "does not divide over tp=3", 3},
      {{"--mesh", "auto", "--set", "device=cuda"}, "--mesh auto on GPUs needs --machine", 2},
      {{"--machine", "h100", "--set", "device=cpu"}, "--machine h100 has times for GPUs"},
      {{"--set", "data.tokens=" + none}, "data.tokens: cannot read " + none},
      {{"--set", "model.vocab_size=40"}, "beyond the vocabulary of 40"},
      {{"--set", "data.loss_mask=" + path("masked.bin").string()}, " counts, so nothing can be trained"},
      {{"--set", "evaluate.tokens=" + none}, "evaluate.tokens: cannot read " + none},
      {{"--set", "evaluate={tokens: " + path("short.bin").string() + ", dtype: uint8, layout: records, samples: 9}"},
       " are requested, but "},
      {{"--resume-step", "3"}, "--resume-step 3: "},
      {{"--set", "train.export=" + run_dir.string()}, " cannot be exported to: "},
      {{"--set", "parallel.fsdp.offload={to: disk, path: " + none + "}"}, " does not exist"},
      // 6e7 x 65536 weights of the embedding: 43 TiB with their optimizer's state, on any disk of a test machine.
      {{"--set", "model.hidden_size=65536", "--set", "model.vocab_size=60000000", "--set", "checkpoint.every=1"},
       " free: choose another --run-dir"},
  };
  for (const BadInput& bad : table) expect_refused_alike(bad.words, bad.part, bad.ranks);
  recipe = path("hf.yaml");
  for (const auto& [name, part] :
       {std::pair("no_weights", "there is no model.safetensors"), {"other_shape", ", but config.json describes "}}) {
    write("hf.yaml", std::string("model: {hf: ") + name + R"(}
data: {tokens: tokens.bin, dtype: uint8, layout: records}
train: {sequence_length: 16, global_batch: 4, steps: 4}
optimizer: {learning_rate: 1.0e-2}
)");
    expect_refused_alike({}, part);
  }
}

TEST_F(TrainCheck, RefusesTheRunDirectoriesThatAStartRefuses) {
  ASSERT_EQ(train(1, {"--set", "train.steps=7", "--set", "checkpoint.every=3"}).status, 0);
  const fs::path checkpoints = run_dir / "checkpoints";
  expect_refused_alike({}, " holds a run; continue it with --resume");
  expect_refused_alike({"--resume", "--set", "optimizer.name=sgd"}, "optimizer.name: sgd, was adamw");
  expect_refused_alike({"--resume"}, "train.steps: 4, but ");
  const Words resume = {"--resume", "--set", "train.steps=9", "--set", "checkpoint.every=3"};
  {
    const int lock = ::open((run_dir / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(::flock(lock, LOCK_EX), 0);
    expect_refused_alike(resume, " is in use by another run");
    // A run in use may remove a checkpoint just after it was found.
    fs::rename(checkpoints / "step-00000007/manifest.json", path("manifest.json"));
    expect_refused_alike(resume, " is in use by another run");
    fs::rename(path("manifest.json"), checkpoints / "step-00000007/manifest.json");
    ::close(lock);
  }
  write("run/checkpoints/step-00000007/manifest.json", "{}");
  expect_refused_alike(resume, "the folder also has checkpoints of steps 3, 6");
  fs::rename(checkpoints, path("unmounted"));
  fs::create_directory(checkpoints);
  expect_refused_alike(resume, ": mount the disk with the checkpoints");
  write("file", "");
  run_dir = path("file") / "run";
  expect_refused_alike({}, " is not a folder");
}

TEST_F(TrainCheck, WarnsOfADiskAsAStartDoes) {
  const Words many = {"--set", "train.steps=1000000000", "--set", "checkpoint.every=1",
                      "--set", "train.time_limit=0.001"};
  const std::string warning = "meshtrain: warning: 1,000,000,000 checkpoints of 127.1 KiB, together ";
  for (const Ending& ending : {check(many), train(1, many)}) {
    EXPECT_TRUE(has(ending.err, warning) && has(ending.err, ": set checkpoint.keep_last, or another --run-dir\n"))
        << ending.out << ending.err;
  }
  // Existing checkpoints need no further space.
  EXPECT_TRUE(has(check({"--resume", "--set", "train.steps=4", "--set", "checkpoint.every=1"}).out,
                  "\n3 checkpoints of 127.1 KiB, "));
}

}  // namespace
}  // namespace meshtrain::testing
