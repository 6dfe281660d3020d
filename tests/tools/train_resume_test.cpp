// A resumed run has the results of one that was never interrupted.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "tests/support/load.h"
#include "tests/tools/train_resume.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

TEST_F(TrainResume, GoesOnToTheSameLosses) {
  for (const auto& [ranks, mesh] : {std::pair{1, "dp=1"}, {2, "dp=2"}, {4, "dp=2,tp=2"}}) {
    run_dir = path("whole" + std::to_string(ranks));
    run(ranks, mesh, 11);
    const auto full = metrics();
    EXPECT_FALSE(fs::exists(checkpoints())) << "none was asked for";

    run_dir = path("parts" + std::to_string(ranks));
    run(ranks, mesh, 8, kEvery3);
    EXPECT_EQ(names(), (Words{"step-00000003", "step-00000006", "step-00000008"}));
    fs::remove_all(checkpoints() / "step-00000008");  // as if the run had been killed before
    const Ending ending = run(ranks, mesh, 11, kResume);
    EXPECT_TRUE(has(ending.out, "\nresumed after step 6, from " + (checkpoints() / "step-00000006").string() + " in "))
        << ending.out;
    EXPECT_TRUE(has(ending.out, "\n  train.steps: 11, was 8\n")) << ending.out;
    const std::string log = content(run_dir / "console.log");
    EXPECT_TRUE(has(log, " info: step 8/8 ") && has(log, " info: resumed after step 6, ")) << log;
    const auto parts = metrics();
    expect_steps(parts, 11);
    for (const char* key : {"loss", "grad_norm", "tokens"}) EXPECT_EQ(column(parts, key), column(full, key)) << key;
    EXPECT_EQ(names().back(), "step-00000011");

    EXPECT_TRUE(has(run(ranks, mesh, 11, kResume).out, "resumed after step 11,"));
    expect_steps(metrics(), 11);
  }
}

TEST_F(TrainResume, GoesOnOnAnotherMeshWithAnotherBatch) {
  run(4, "dp=2,tp=2", 6, {"--set", "checkpoint.every=3", "--set", "train.precision=fp64"});
  const Ending ending = run(2, "cp=2", 9,
                            {"--resume", "--set", "train.precision=fp64", "--set", "train.global_batch=2", "--set",
                             "optimizer.learning_rate=1e-3"});
  for (const char* change : {"parallel.mesh.dp: 1, was 2", "parallel.mesh.tp: 1, was 2", "parallel.mesh.cp: 2, was 1",
                             "train.global_batch: 2, was 4", "optimizer.learning_rate: 0.001, was 0.01"}) {
    EXPECT_TRUE(has(ending.out, "\n  " + std::string(change) + "\n")) << change << " is not in " << ending.out;
  }
  expect_steps(metrics(), 9);
  const std::vector<double> samples = {4, 8, 12, 16, 20, 24, 26, 28, 30};
  std::vector<double> tokens;
  for (const double seen : samples) tokens.push_back(16 * seen);
  EXPECT_EQ(column(metrics(), "tokens"), tokens);
  EXPECT_LT(metrics()[6].at("loss"), metrics()[0].at("loss"));
}

TEST_F(TrainResume, FromAnEarlierStepSetsLaterOnesAside) {
  run(1, "dp=1", 8, kEvery3);
  const auto before = metrics();
  const std::string line = "\nthe checkpoints of steps 6, 8, which are later, are set aside as abandoned-step-...\n";
  EXPECT_TRUE(has(train(1, {"--check", "--resume-step", "3", "--set", "train.steps=8"}).out, line));
  EXPECT_TRUE(has(run(1, "dp=1", 5, {"--resume-step", "3"}).out, line));
  EXPECT_EQ(names(), (Words{"abandoned-step-00000006", "abandoned-step-00000008", "step-00000003"}));
  expect_steps(metrics(), 5);
  EXPECT_EQ(metrics()[4].at("loss"), before[4].at("loss"));
  const std::string message = complaint(1, {"--resume-step", "6"});
  EXPECT_EQ(message, "--resume-step 6: " + (checkpoints() / "step-00000006").string() +
                         " does not exist; there are checkpoints of step 3");
}

TEST_F(TrainResume, OldCheckpointsGo) {
  run(2, "dp=2", 10, {"--set", "checkpoint={every: 1, keep_last: 2, keep_every: 4}"});
  EXPECT_EQ(names(), (Words{"step-00000004", "step-00000008", "step-00000009", "step-00000010"}));
}

TEST_F(TrainResume, LossScaleAndSkippedStepsGoOn) {
  const Words fp16 = {"--set", "train.precision=fp16_mixed",
                      "--set", "train.loss_scale={initial: 67108864, growth_interval: 4}",
                      "--set", "checkpoint.every=5"};
  run(2, "dp=2", 15, fp16);
  const auto full = metrics();
  Words resume = fp16;
  resume.insert(resume.end(), {"--resume-step", "5"});  // every step up to this one was skipped
  run(2, "dp=2", 15, resume);
  for (const char* key : {"loss_scale", "skipped", "loss"}) {
    for (size_t i = 0; i < full.size(); ++i) EXPECT_EQ(metrics().at(i).at(key), full[i].at(key)) << key << " " << i;
  }
}

TEST_F(TrainResume, FromTheDiskAsFromMemory) {
  const Words offload = {
      "--set", "parallel.fsdp={mode: full_shard, offload: {to: disk, path: " + path("shards").string() + "}}"};
  Words saving = offload, resuming = offload;
  saving.insert(saving.end(), kEvery3.begin(), kEvery3.end());
  resuming.insert(resuming.end(), kResume.begin(), kResume.end());
  run(2, "dp=2", 9, offload);
  const auto full = metrics();
  run_dir = path("parts");
  run(2, "dp=2", 6, saving);
  run(2, "dp=2", 9, resuming);
  EXPECT_EQ(column(metrics(), "loss"), column(full, "loss"));
}

TEST_F(TrainResume, WhatContradictsTheCheckpointChangesNothing) {
  run(2, "dp=2", 4, kEvery3);
  const auto before = contents(run_dir);
  const auto refused = [&](const Words& arguments) {
    Words words = {"--mesh", "dp=2"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const std::string message = complaint(2, words);
    EXPECT_EQ(contents(run_dir), before) << message;
    return message;
  };
  const std::string start =
      "the recipe contradicts the checkpoint " + (checkpoints() / "step-00000004").string() + ": ";
  EXPECT_TRUE(has(refused({}), " holds a run; continue it with --resume"));
  EXPECT_EQ(refused({"--resume", "--set", "model.num_hidden_layers=2"}).substr(0, start.size() + 35),
            start + "model.num_hidden_layers: 2, was 1: ");
  EXPECT_TRUE(has(refused({"--resume", "--set", "optimizer.name=sgd"}), start + "optimizer.name: sgd, was adamw"));
  write("other.bin", std::string(100 * 17, 'x' - 64));
  EXPECT_TRUE(has(refused({"--resume", "--set", "data.tokens=" + path("other.bin").string()}),
                  start + "data.tokens: a file of 1700 bytes with checksum "));
  const fs::path file = checkpoints() / "step-00000004/rank-00001.safetensors";
  fs::rename(file, path("away"));
  const auto without = contents(run_dir);
  const std::string message = complaint(2, {"--mesh", "dp=2", "--resume"});
  EXPECT_TRUE(has(message, "rank ") && has(message, " is unreadable: cannot read " + file.string())) << message;
  EXPECT_TRUE(has(message, "; the folder also has checkpoints of step 3: resume from one of them with --resume-step N"))
      << message;
  EXPECT_EQ(contents(run_dir), without);
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--resume", "--set", "train.steps=3"}), "train.steps: 3, but "))
      << "before a piece is read";
  fs::remove(checkpoints() / "step-00000004/manifest.json");
  fs::rename(checkpoints() / "step-00000003", path("first"));
  const std::string alone = complaint(2, {"--mesh", "dp=2", "--resume"});
  EXPECT_TRUE(has(alone, "cannot read " + (checkpoints() / "step-00000004/manifest.json").string())) << alone;
  EXPECT_TRUE(has(alone, "the folder has no other checkpoint")) << alone;
}

TEST_F(TrainResume, NeedsNoFolderOfTheModelAnyMore) {
  fs::create_directory(path("hf"));
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy(source_folder() + "/tests/fixtures/llama_gqa_tied/" + file, path("hf") / file);
  }
  write("hf.yaml", R"(model: {hf: hf}
data: {tokens: tokens.bin, dtype: uint8}
train: {sequence_length: 16, global_batch: 4, steps: 6}
optimizer: {learning_rate: 1.0e-2}
)");
  recipe = path("hf.yaml");
  run(2, "dp=2", 6);
  const auto full = metrics();
  run_dir = path("parts");
  run(2, "dp=2", 3, kEvery3);
  fs::remove(path("hf/model.safetensors"));
  fs::rename(path("hf"), path("moved"));
  const auto before = contents(run_dir);
  const std::string gone =
      "\n  model.hf: " + path("hf").string() + " no longer exists: the model is read from the checkpoint\n";
  const Ending checked = train(1, {"--check", "--mesh", "dp=2", "--resume"});
  EXPECT_TRUE(has(checked.out, "\ncontinues after step 3") && has(checked.out, gone)) << checked.out << checked.err;
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--resume", "--set", "model.num_hidden_layers=7"}),
                  ": model.num_hidden_layers: 7, was "));
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2"}), ": model.hf: there is no folder " + path("hf").string()));
  EXPECT_EQ(contents(run_dir), before);
  const Ending ending = run(2, "dp=2", 6, kResume);
  EXPECT_TRUE(has(ending.out, gone)) << ending.out;
  EXPECT_EQ(column(metrics(), "loss"), column(full, "loss"));
  recipe = run_dir / "recipe.yaml";
  EXPECT_TRUE(has(run(2, "dp=2", 7, kResume).out, gone)) << "the recipe as it ran does as well";
  run_dir = path("another");
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2", "--resume"}), ": model.hf: there is no folder "));
}

TEST_F(TrainResume, IsCheckedWithoutReadingPieces) {
  const auto check = [&](Words more) {
    more.insert(more.begin(), {"--check", "--mesh", "dp=2"});
    return more;
  };
  EXPECT_TRUE(has(train(1, check({"--resume"})).out,
                  "\n--resume: no checkpoint in " + checkpoints().string() + ": begins at step 1\n"));
  EXPECT_FALSE(fs::exists(run_dir));
  const std::string cosine = "schedule=cosine";
  run(2, "dp=2", 6, {"--set", "checkpoint.every=3", "--set", cosine});
  const fs::path step3 = checkpoints() / "step-00000003";
  fs::remove(step3 / "rank-00001.safetensors");
  const auto before = contents(run_dir);
  const Ending ending = train(2, check({"--resume-step", "3", "--set", "train.steps=9", "--set", cosine}));
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(count(ending.out, "tiny: fits mesh dp=2,cp=1,tp=1;"), 1) << ending.out;
  EXPECT_TRUE(
      has(ending.out, "\ncontinues after step 3, from " + step3.string() +
                          ", whose pieces were not read\n  train.steps: 9, was 6\n  checkpoint.every: 0, was 3\n"))
      << ending.out;
  EXPECT_TRUE(
      has(ending.err, "meshtrain: warning: schedule.name: cosine is spread over train.steps, now 9 instead of 6: "));
  EXPECT_TRUE(has(complaint(1, check({"--resume-step", "4"})), "does not exist; there are checkpoints of steps 3, 6"));
  EXPECT_TRUE(has(complaint(1, check({"--resume", "--set", "train.seed=7"})), "train.seed: 7, was 42"));
  EXPECT_TRUE(has(complaint(1, check({"--resume", "--set", "train.steps=4"})), "train.steps: 4, but "));
  EXPECT_EQ(contents(run_dir), before);
}

TEST_F(TrainResume, IsLookedInto) {
  const std::string tokenizer = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  run(2, "dp=2", 4,
      {"--set", "checkpoint.every=3", "--set", "model.vocab_size=1101", "--set", "data.tokenizer=" + tokenizer});
  const fs::path folder = checkpoints() / "step-00000004";
  for (const fs::path& path : {run_dir, checkpoints(), folder}) {
    const Ending ending = run_meshtrain({"checkpoint", "inspect", path.string()});
    EXPECT_EQ(ending.status, 0) << ending.err;
    for (const std::string& part :
         {folder.string() +
              "\n  step 4: 16 samples seen, 4 updates made\n  written on mesh dp=2,cp=1,tp=1 by meshtrain 0.",
          std::string("\n  data.tokens: 1,700 bytes, checksum "), std::string("\n  data.tokenizer: checksum "),
          std::string("\n  exp_avg in F32: 11 tensors, "), std::string("\n  weights in F32: 11 tensors, "),
          std::string("\nmodel.norm.weight F32 [32], ")}) {
      EXPECT_TRUE(has(ending.out, part)) << part << " is not in " << ending.out;
    }
    EXPECT_FALSE(has(ending.out, " in rank-"));
  }
  const Ending pieces = run_meshtrain({"checkpoint", "inspect", folder.string(), "--pieces"});
  EXPECT_TRUE(has(pieces.out, "\n  [0:32] in rank-0000")) << pieces.out;

  const Ending full = run_meshtrain({"checkpoint", "verify", run_dir.string()});
  EXPECT_EQ(full.status, 0) << full.out;
  EXPECT_TRUE(has(full.out, " bytes: every byte is intact\n")) << full.out;

  const fs::path file = folder / "rank-00001.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  const int last = stream.peek();
  stream.put(static_cast<char>(last ^ 4));
  stream.close();
  const Ending damaged = run_meshtrain({"checkpoint", "verify", folder.string()});
  EXPECT_EQ(damaged.status, 1) << damaged.out;
  EXPECT_TRUE(has(damaged.out, file.string() + ": model.") && has(damaged.out, "] is damaged: its checksum is "))
      << damaged.out;
  EXPECT_TRUE(has(damaged.out, " bytes: 1 piece is missing or damaged\n")) << damaged.out;

  fs::remove(file);
  const Ending missing = run_meshtrain({"checkpoint", "verify", folder.string()});
  EXPECT_EQ(missing.status, 1) << missing.out;
  EXPECT_EQ(count(missing.out, "\n"), 2) << missing.out;
  EXPECT_TRUE(has(missing.out, "cannot read " + file.string() + ": No such file or directory; it held "))
      << missing.out;
  EXPECT_TRUE(has(missing.out, " bytes: ") && has(missing.out, " pieces are missing or damaged\n")) << missing.out;

  const fs::path manifest = folder / "manifest.json";
  std::ofstream(manifest, std::ios::app) << "}";
  const Ending changed = run_meshtrain({"checkpoint", "verify", folder.string()});
  EXPECT_EQ(changed.status, 1) << changed.err;
  EXPECT_EQ(changed.out, manifest.string() + " is damaged: it was cut short: it does not end with its checksum\n");
  fs::remove(manifest);
  for (const fs::path& path : {run_dir, folder}) {
    const Ending without = run_meshtrain({"checkpoint", "verify", path.string()});
    EXPECT_EQ(without.status, 1) << without.err;
    EXPECT_EQ(without.out, "cannot read " + manifest.string() + ": No such file or directory\n");
  }

  EXPECT_EQ(only_complaint(run_meshtrain({"checkpoint", "verify", path("tokens.bin").string()})),
            "there is no checkpoint in " + path("tokens.bin").string() +
                ": give a folder that has a manifest.json, or the directory of a run that has written one");
}

/// A run with a checkpoint at every step that is killed at random instants, again and again, until it is done.
class TrainKilled : public TrainResume {
 protected:
  static constexpr int kSteps = 400;

  void SetUp() override {
    run(1, "dp=1", kSteps, {"--set", "train.log_every=1000"});
    full_ = column(metrics(), "loss");
    run_dir = path("killed");
  }

  Words words() const {
    return {"--resume",
            "--mesh",
            "dp=1",
            "--set",
            "train.steps=" + std::to_string(kSteps),
            "--set",
            "train.log_every=1000",
            "--set",
            "checkpoint={every: 1, keep_last: 2}"};
  }

  std::vector<double> full_;
};

TEST_F(TrainKilled, IsAlwaysResumed) {
  constexpr int kKills = 25;
  std::mt19937_64 generator(17);
  int interrupted = 0;
  size_t furthest = 0;
  for (int i = 0; i < kKills; ++i) {
    Program program(command(1, words()));
    const size_t lines = metrics().size();
    wait_until([&] { return metrics().size() > lines || program.has_ended(); });
    std::this_thread::sleep_for(std::chrono::microseconds(generator() % 30000));
    program.signal(SIGKILL);
    const Ending ending = program.wait();
    EXPECT_TRUE(ending.status == 128 + SIGKILL || ending.status == 0) << ending.err;
    interrupted += ending.status != 0;
    const auto killed = metrics();
    for (size_t step = 0; step < killed.size(); ++step) ASSERT_EQ(killed[step].at("loss"), full_[step]);
    furthest = std::max(furthest, killed.size());
  }
  EXPECT_GT(interrupted, kKills / 2);
  EXPECT_GT(furthest, static_cast<size_t>(kKills / 2)) << "lives continue from the last checkpoint";
  const Ending ending = train(1, words());
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(column(metrics(), "loss"), full_);
  EXPECT_EQ(names().size(), 2u) << "nothing half written is left";
}

TEST_F(TrainResume, ARunThatCannotBeReadIsNotBegunAnew) {
  run(1, "dp=1", 4, kEvery3);
  const auto before = contents(run_dir);
  Words words = kResume;
  words.insert(words.end(), {"--set", "train.steps=6"});
  EXPECT_TRUE(has(complaint(1, words, 1, with_faults("opendir:/checkpoints:EACCES")),
                  "cannot read the checkpoints in " + checkpoints().string() + ": Permission denied"));
  EXPECT_TRUE(has(complaint(1, words, 1, with_faults("read:metrics.jsonl:EIO")),
                  "cannot read " + (run_dir / "metrics.jsonl").string()));
  EXPECT_EQ(contents(run_dir), before);
  EXPECT_EQ(train(1, words).status, 0);
  expect_steps(metrics(), 6);
}

TEST_F(TrainResume, ADiskThatCannotReadAPieceIsNamed) {
  run(2, "dp=2", 4, kEvery3);
  Words words = kResume;
  words.insert(words.end(), {"--set", "train.steps=6", "--mesh", "dp=2"});
  const std::string file = (checkpoints() / "step-00000004" / "rank-00001.safetensors").string();
  const std::string message = complaint(2, words, 2, with_faults("pread:rank-00001.safetensors:EIO:2"));
  EXPECT_TRUE(has(message, "rank 1") && has(message, "cannot read " + file + ": Input/output error at byte "))
      << message;
  EXPECT_TRUE(has(message, ", for tensor \"model.") || has(message, " is unreadable: ")) << message;
  EXPECT_TRUE(has(message, "the folder also has checkpoints of step 3")) << message;
  EXPECT_EQ(train(2, words).status, 0);
}

}  // namespace
}  // namespace meshtrain::testing
