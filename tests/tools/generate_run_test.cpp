// `meshtrain generate` from a run, which remembers its tokenizer.

#include <filesystem>

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class GenerateRun : public TrainProgram {
 protected:
  /// Trains with this tokenizer and one checkpoint.
  void train_with(const std::string& tokenizer) const {
    const Ending ending = train(
        1, {"--set", "checkpoint.every=4", "--set", "model.vocab_size=300", "--set", "data.tokenizer=" + tokenizer});
    ASSERT_EQ(ending.status, 0) << ending.err;
  }
  Ending generate(const Words& more) const {
    Words words = {"generate", run_dir.string(), "--max-tokens", "3"};
    words.insert(words.end(), more.begin(), more.end());
    return run_meshtrain(words);
  }
};

TEST_F(GenerateRun, NeedsNoTokenizerWhereTheRecipeHasOne) {
  train_with("bytes");
  const Ending ending = generate({"--prompt", "abc", "--json"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(nlohmann::json::parse(ending.out).at("prompt_tokens"), (std::vector<int64_t>{'a', 'b', 'c'}));
  EXPECT_EQ(ending.out, generate({"--prompt", "abc", "--json", "--tokenizer", "bytes"}).out);
  EXPECT_FALSE(has(ending.err, "warning")) << ending.err;
}

TEST_F(GenerateRun, SaysThatTheTokenizerIsAnotherOrGone) {
  const fs::path original = source_folder() + "/tests/tokenizer/fixtures/sentencepiece/tokenizer.model";
  const fs::path tokenizer = path("tokenizer.model");
  write_file(tokenizer, content(original));
  run_dir = path("run");
  const Ending trained = train(1, {"--set", "checkpoint.every=4", "--set", "model.vocab_size=40000", "--set",
                                   "data.tokenizer=" + tokenizer.string()});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_FALSE(has(generate({"--prompt", "abc"}).err, "warning"));
  const std::string other = source_folder() + "/tests/tokenizer/fixtures/llama3";
  const Ending differs = generate({"--prompt", "abc", "--tokenizer", "bytes"});
  EXPECT_EQ(differs.status, 0) << differs.err;
  EXPECT_TRUE(
      has(differs.err, "warning: the tokenizer bytes is not the run's: the checksum of the run's tokenizer was "))
      << differs.err;
  fs::remove(tokenizer);
  EXPECT_TRUE(has(only_complaint(generate({"--prompt", "abc"})),
                  "prompt 1 is a text, and data.tokenizer of the run's recipe, " + tokenizer.string() +
                      ", no longer exists: give --tokenizer"));
  EXPECT_EQ(train(1, {"--resume", "--set", "train.steps=5", "--set", "model.vocab_size=40000", "--set",
                      "data.tokenizer=" + tokenizer.string()})
                .status,
            0)
      << "no step needs it";
}

TEST_F(GenerateRun, WarnsOfTextsThatAreLongerThanItsSamples) {
  train_with("bytes");
  const std::string sixteen(16, 'a');
  EXPECT_TRUE(has(generate({"--prompt", sixteen + "b"}).err,
                  "warning: prompt 1 has 17 tokens, and the model was trained on 16 at a time"));
  EXPECT_TRUE(has(generate({"--prompt", sixteen}).err,
                  "warning: the text of prompt 1 has 19 tokens, and the model was trained on 16 at a time"));
  EXPECT_FALSE(has(generate({"--prompt", "abc"}).err, "warning"));
}

TEST_F(GenerateRun, OneLineOfOursIsAllThatAnErrorPrints) {
  const Ending ending =
      run_meshtrain_on_ranks(2, {"train", recipe.string(), "--mesh", "dp=2", "--set", "train.stpes=1"});
  EXPECT_EQ(ending.err, "meshtrain: --set train.stpes=1: unknown key; did you mean \"steps\"?\n");
  EXPECT_EQ(ending.status, 2);
  const Ending none = run_program({source_folder() + "/tools/ranks", "2", "no-such-program"});
  EXPECT_EQ(none.err, "ranks: there is no command no-such-program\n");
  EXPECT_EQ(none.status, 127);
}

}  // namespace
}  // namespace meshtrain::testing
