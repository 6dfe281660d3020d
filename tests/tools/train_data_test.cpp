// Data of a run besides one file in its order: mixtures, files of Megatron, held-out samples.

#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>
#include <utility>

#include "tests/runtime/training/data/megatron_files.h"
#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class TrainData : public TrainProgram {
 protected:
  /// Returns random ids below 64.
  static std::string ids(size_t count, unsigned seed) {
    std::mt19937_64 random(seed);
    std::string text(count, '\0');
    for (char& id : text) id = static_cast<char>(random() % 64);
    return text;
  }

  Ending run(int ranks, Words words) const {
    const Ending ending = train(ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending;
  }

  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const nlohmann::json& line : metrics()) losses.push_back(line.at("loss"));
    return losses;
  }
  /// Returns the evaluated steps and their eval_loss.
  std::map<int, double> evaluations() const {
    std::map<int, double> found;
    for (const nlohmann::json& line : metrics()) {
      if (line.contains("eval_loss")) found[line.at("step")] = line.at("eval_loss");
    }
    return found;
  }
};

// Steps 2 and 3 of 5 have samples without a label that counts: what is trained is what the other three steps train.
TEST_F(TrainData, SkipsStepsWithoutALabelThatCounts) {
  write("tokens.bin", ids(20 * 17, 3));
  std::string mask(20 * 17, '\1');
  for (size_t sample = 4; sample < 12; ++sample) std::fill_n(mask.begin() + static_cast<int>(sample) * 17 + 1, 16, 0);
  write("mask", mask);
  const Words masked = {
      "--set", "data.loss_mask=" + path("mask").string(), "--set", "train.steps=5", "--set", "checkpoint.every=2"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), masked.begin(), masked.end());
    return words;
  };
  const Ending ending = run(2, with({"--mesh", "dp=2"}));
  const std::string file = path("tokens.bin").string();
  EXPECT_TRUE(has(ending.out, "step 2/5  skipped: no label of it counts: " + file + ": sample 4 to 7\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "step 3/5  skipped: no label of it counts: " + file + ": sample 8 to 11\n"));
  const std::vector<nlohmann::json> steps = metrics();
  expect_steps(steps, 5);
  for (size_t i = 0; i < 5; ++i) {
    const bool skipped = i == 1 || i == 2;
    EXPECT_EQ(steps[i].at("counted_tokens"), skipped ? 0 : 64);
    EXPECT_EQ(steps[i].at("tokens"), 64 * (i + 1)) << "the order of samples goes on";
    EXPECT_EQ(steps[i].value("skipped", false), skipped);
    EXPECT_EQ(steps[i].contains("no_label"), skipped);
    EXPECT_EQ(steps[i].at("loss").is_null(), skipped);
  }

  // Another mesh, and a resume after the first of the skipped steps, give the same.
  run_dir = path("alone");
  run(1, with({"--set", "checkpoint.keep_last=0"}));
  const std::vector<nlohmann::json> alone = metrics();
  for (size_t i : {0, 3, 4}) EXPECT_NEAR(alone[i].at("loss"), steps[i].at("loss").get<double>(), 1e-5) << i;
  run(1, with({"--resume-step", "2"}));
  EXPECT_EQ(metrics()[4].at("loss"), alone[4].at("loss")) << "to the bit";

  // Without the skipped samples the remaining steps are made with the same weights and gradients.
  run_dir = path("without");
  write("shorter.bin", ids(20 * 17, 3).erase(4 * 17, 8 * 17));
  run(1, {"--set", "data.tokens=" + path("shorter.bin").string(), "--set", "train.steps=3"});
  const std::vector<double> without = losses();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(alone[i == 0 ? 0 : i + 2].at("loss").get<double>(), without[i]) << "no update, no state of the optimizer";
  }
}

TEST_F(TrainData, RefusesAFileWithoutALabelThatCounts) {
  write("mask", std::string(100 * 17, '\0'));
  const Words words = {"--set", "data.loss_mask=" + path("mask").string()};
  const std::string refusal = complaint(2, words);
  EXPECT_TRUE(refusal.starts_with("--set data.loss_mask=" + path("mask").string() + ": no label of ")) << refusal;
  EXPECT_EQ(complaint(1, {words[0], words[1], "--check"}), refusal);
  EXPECT_FALSE(std::filesystem::exists(run_dir));
}

TEST_F(TrainData, ComparesTheRecipeWithWhatTheTokensSay) {
  write("text", std::string(40 * 17, '\1'));
  const std::string tokens = path("made.bin").string();
  const auto prepare = [&](const std::string& dtype) {
    const Ending made = run_meshtrain({"data", "prepare", "--bytes", path("text"), "--out", tokens, "--dtype", dtype});
    ASSERT_EQ(made.status, 0) << made.err;
  };
  prepare("uint16");
  write("unsaid.yaml", [&] {
    std::string text = content(recipe);
    return text.erase(text.find("  layout: records\n"), std::string("  layout: records\n").size());
  }());
  const Words words = {"--set", "data.tokens=" + tokens, "--set", "model.vocab_size=256"};
  const std::string refusal = complaint(2, words);
  EXPECT_EQ(refusal, recipe.string() + ":12:10: data.dtype: " + tokens +
                         " would be read as uint8, but holds uint16, as " + tokens +
                         ".json says: set data.dtype: uint16");
  EXPECT_EQ(complaint(1, {words[0], words[1], "--check"}), refusal);
  prepare("uint8");
  EXPECT_TRUE(has(complaint(1, {words[0], words[1]}),
                  recipe.string() + ":8:15: model.vocab_size: the model's vocab_size is 64, but " + tokens +
                      " was made with ids up to 255, of the tokenizer bytes"));
  EXPECT_EQ(train(1, words).status, 0);
  const std::string other = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  for (const char* mode : {"--check", "--resume"}) {
    EXPECT_TRUE(has(complaint(1, {words[0], words[1], words[2], words[3], "--set", "data.tokenizer=" + other, mode}),
                    "--set data.tokenizer=" + other + ": the run's tokenizer is " + other +
                        ", with ids up to 1100, but " + tokens + " was made with bytes, with ids up to 255"))
        << mode;
  }
  const std::filesystem::path said = std::exchange(recipe, path("unsaid.yaml")), of_records = run_dir;
  const std::string line = "data.layout: stream, as " + tokens + ".json says\n";
  run_dir = path("streamed");
  EXPECT_TRUE(has(run(1, {words[0], words[1], words[2], words[3], "--check"}).out, line));
  EXPECT_TRUE(has(run(2, {words[0], words[1], words[2], words[3], "--mesh", "dp=2"}).out, line));
  EXPECT_TRUE(has(content(run_dir / "recipe.yaml"), "layout: stream"));
  // A run that was begun with another layout is not continued with this one.
  run_dir = path("begun");
  run(1, {words[0], words[1], words[2], words[3], "--set", "data.layout=records", "--set", "checkpoint.every=2"});
  EXPECT_TRUE(
      has(complaint(1, {words[0], words[1], words[2], words[3], "--resume"}), "data.layout: stream, was records"));
  recipe = said;
  run_dir = of_records;
  write("made.bin", std::string(30 * 17, '\1'));
  EXPECT_TRUE(has(complaint(1, {words[0], words[1], words[2], words[3], "--resume"}),
                  "has 510 bytes, but 680 tokens of uint8"));
}

TEST_F(TrainData, WarnsAboutTokensOfAnotherDtype) {
  std::string wide;
  for (const char id : ids(80 * 17, 3)) wide += {id, '\0'};
  write("tokens.bin", wide);
  const std::string warning = "meshtrain: warning: data.dtype: " + path("tokens.bin").string() +
                              " is read as uint16, but every second id is 0 or small, as if it held uint32";
  const Words words = {"--set", "data.dtype=uint16"};
  std::string twice;
  for (const char id : ids(80 * 17, 3)) twice += std::string{id, '\0', '\0', '\0'};
  EXPECT_FALSE(has(run(1, {words[0], words[1], "--check"}).err, "warning: data.dtype"));
  write("tokens.bin", twice);
  EXPECT_TRUE(has(run(1, {words[0], words[1], "--check"}).err, warning));
  const Ending ending = run(2, {"--mesh", "dp=2", words[0], words[1]});
  EXPECT_TRUE(has(ending.err, warning)) << ending.err;
}

// The evaluation would take seconds; the signal comes in it, or in the step before.
TEST_F(TrainData, ARequestToStopEndsAnEvaluation) {
  write("held_out.bin", ids(100'000 * 17, 5));
  Program program(command(2, {"--mesh", "dp=2", "--set", "train.steps=9", "--set", "checkpoint.every=9", "--set",
                              "evaluate={every: 2, tokens: " + path("held_out.bin").string() + "}"}));
  wait_for_steps(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  program.signal(SIGUSR1);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_TRUE(has(ending.out, "stopped on request after step 2;")) << ending.out;
  EXPECT_TRUE(std::filesystem::exists(run_dir / "checkpoints" / "step-00000002"));
  EXPECT_TRUE(evaluations().empty());
}

TEST_F(TrainData, EvaluationIsToldAndChangesNothing) {
  write("held_out.bin", ids(21 * 17, 5));
  const std::string held_out = path("held_out.bin").string();
  const Words plain = {"--mesh", "dp=2", "--set", "train.steps=7", "--set", "train.log_every=5"};
  run(2, plain);
  const std::vector<double> without = losses();
  EXPECT_TRUE(evaluations().empty());

  run_dir = path("evaluated");
  Words words = plain;
  words.insert(words.end(), {"--set", "evaluate={every: 3, tokens: " + held_out + "}", "--set", "checkpoint.every=3"});
  const Ending ending = run(2, words);
  EXPECT_EQ(losses(), without) << "to the bit";
  const std::map<int, double> found = evaluations();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found.contains(3) && found.contains(6) && found.contains(7));
  EXPECT_NEAR(found.at(3), std::log(64), 1);
  EXPECT_NE(found.at(3), found.at(6));
  for (const nlohmann::json& line : metrics()) {
    if (!line.contains("eval_loss")) continue;
    EXPECT_EQ(line.at("eval_tokens"), 21 * 16) << "of all samples, though 2 ranks do not divide them";
    EXPECT_GT(line.at("eval_seconds").get<double>(), 0);
  }
  EXPECT_TRUE(
      has(ending.out, "\nheld out: " + held_out + ": 21 samples, 336 tokens, after every 3 steps and the last\n"))
      << ending.out;
  for (const int step : {3, 6, 7}) {
    char text[32];
    std::snprintf(text, sizeof text, "  eval loss %.4f\n", found.at(step));
    EXPECT_TRUE(has(ending.out, text)) << "whatever train.log_every is: " << ending.out;
  }

  run_dir = path("alone");
  words[1] = "dp=1";
  run(1, words);
  for (const auto& [step, loss] : found) EXPECT_NEAR(evaluations().at(step), loss, 1e-5 * loss);

  run_dir = path("evaluated");  // continues with other settings
  const Ending resumed = run(2, {"--mesh", "dp=2", "--resume-step", "6", "--set", "train.steps=9", "--set",
                                 "evaluate={every: 2, samples: 4, tokens: " + held_out + "}"});
  EXPECT_TRUE(has(resumed.out, "\n  evaluate.every: 2, was 3\n")) << resumed.out;
  EXPECT_TRUE(has(resumed.out, "\n  evaluate.samples: 4, was none\n")) << resumed.out;
  EXPECT_EQ(evaluations().size(), 4u) << "3, 6, 8, 9";
  EXPECT_EQ(metrics().back().at("eval_tokens"), 4 * 16);
}

TEST_F(TrainData, AFileThatIsTrainedOnIsNotHeldOut) {
  write("held_out.bin", ids(21 * 17, 5));
  std::filesystem::create_hard_link(path("tokens.bin"), path("linked.bin"));
  const auto said = [&](const std::string& file) {
    const Ending ending = run(1, {"--check", "--set", "evaluate.tokens=" + path(file).string()});
    return count(
        ending.err,
        "meshtrain: warning: evaluate.tokens and data.tokens are the same file, so the loss is not of held-out tokens");
  };
  EXPECT_EQ(said("held_out.bin"), 0);
  EXPECT_EQ(said("tokens.bin"), 1);
  EXPECT_EQ(said("linked.bin"), 1);
  run(1, {"--set", "train.steps=1", "--set", "evaluate.tokens=" + path("tokens.bin").string()});
  const std::string log = testing::content(run_dir / "console.log");
  EXPECT_TRUE(has(log, " warning: evaluate.tokens and data.tokens are the same file")) << log;
}

TEST_F(TrainData, HeldOutTokensAreCheckedBeforeTheStart) {
  const Words words = {"--mesh", "dp=2", "--set", "evaluate.tokens=" + path("held_out.bin").string()};
  EXPECT_EQ(complaint(2, words),
            "evaluate.tokens: cannot read " + path("held_out.bin").string() + ": No such file or directory");
  write("held_out.bin", ids(17, 5) + std::string(17, '\x41'));
  EXPECT_TRUE(has(complaint(2, words), "held_out.bin: token 17 has id 65, beyond the vocabulary of 64"));
  write("held_out.bin", ids(16, 5));
  EXPECT_TRUE(has(complaint(2, words), "16 tokens are fewer than one sample of 17"));
  EXPECT_FALSE(std::filesystem::exists(run_dir));
}

TEST_F(TrainData, MixturesAreToldAndGoOn) {
  write("b.bin", ids(10 * 17, 2));
  const std::string mixture = "data={tokens: null, mixture: [{tokens: " + path("tokens.bin").string() +
                              ", weight: 0.7}, {tokens: " + path("b.bin").string() + ", weight: 0.3, shuffle: true}]}";
  const Words words = {"--mesh", "dp=2", "--set", mixture, "--set", "train.steps=10", "--set", "checkpoint.every=4"};
  const std::string first = "data: " + path("tokens.bin").string() +
                            ": 28 samples, 448 tokens, 0.28 epochs, 70.0 % of the run\n",
                    second = "data: " + path("b.bin").string() +
                             ": 12 samples, 192 tokens, 1.20 epochs, 30.0 % of the run\n";
  Words check = words;
  check.emplace_back("--check");
  const std::string checked = run(1, check).out;
  EXPECT_TRUE(checked.starts_with("tiny: fits mesh dp=2,cp=1,tp=1; 110 samples of 16 tokens\n" + first + second))
      << checked;
  EXPECT_TRUE(has(checked, "\nmesh:\n  dp: 2\n")) << checked;
  const Ending ending = run(2, words);
  EXPECT_TRUE(has(ending.out, "\n" + first + second)) << ending.out;
  const std::vector<double> full = losses();

  Words resume = words;
  resume.insert(resume.end(), {"--resume-step", "4"});
  EXPECT_TRUE(has(run(2, resume).out, "\n" + first + second)) << "of the whole run";
  EXPECT_EQ(losses(), full);
  Words other = resume;
  other[3] = mixture;
  other[3].replace(other[3].find("0.7"), 3, "0.6");
  EXPECT_TRUE(has(complaint(2, other), "data.mixture[0].weight: 0.6, was 0.7"));

  EXPECT_TRUE(
      has(complaint(1, {"--set", "data.mixture=[{tokens: b.bin, weight: 1}]"}),
          ": data.tokens: describes one file: set it in the entries of data.mixture, or leave data.mixture out"));
  write("b.bin", std::string(170, 'x'));
  run_dir = path("another");
  EXPECT_TRUE(has(complaint(2, words), "b.bin: token 0 has id 120, beyond the vocabulary of 64"));
}

TEST_F(TrainData, FilesOfMegatronAreRead) {
  std::vector<int64_t> tokens;
  for (const char id : ids(40 * 17, 3)) tokens.push_back(id);
  write_ids<int32_t>(path("theirs.bin"), tokens);
  std::vector<int32_t> lengths(40, 17);
  write("theirs.idx", megatron_fields(4, 4, lengths).bytes());
  write("ours.bin", ids(40 * 17, 3));
  run(1, {"--set", "data={tokens: " + path("ours.bin").string() + ", layout: stream}"});
  const std::vector<double> ours = losses();
  run_dir = path("theirs");
  const std::string theirs = "data={tokens: " + path("theirs.bin").string() + ", dtype: megatron, layout: null}";
  run(1, {"--set", theirs, "--set", "checkpoint.every=2"});
  EXPECT_EQ(losses(), ours);
  run_dir = path("packed");
  run(2, {"--mesh", "cp=2", "--set", theirs, "--set", "data.documents=index"});
  EXPECT_NE(losses(), ours) << "attention stays inside documents";

  run_dir = path("theirs");
  lengths.back() = 16;  // another index for the same ids
  write("theirs.idx", megatron_fields(4, 4, lengths).bytes());
  EXPECT_TRUE(has(complaint(1, {"--resume", "--set", theirs}), "data.tokens.idx: a file of "));
}

}  // namespace
}  // namespace meshtrain::testing
