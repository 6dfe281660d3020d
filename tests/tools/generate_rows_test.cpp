// `meshtrain generate` over dp, whose ranks take different prompts and hold shards of the weights, and with --offload.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

class GenerateOverDp : public ::testing::Test {
 protected:
  GenerateOverDp() {
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy(source_folder() + "/tests/fixtures/qwen3/" + file, folder_.path());
    }
    write_file(folder_.path() / "generation_config.json", R"({"max_length": 26})");  // the prompt counts
  }

  std::string model() const { return folder_.path(); }

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// Returns a command with the first `count` of five prompts of different lengths. The first text ends long after the
  /// second.
  Words asked(size_t count, const Words& more = {}) const {
    const Words ids = {"5", "7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7", "1,2,3", "9,8", "3,1,4,1,5"};
    Words words = {"generate", model()};
    for (size_t i = 0; i < count; ++i) words = with(words, {"--tokens", ids[i]});
    return with(words, more);
  }

  const std::vector<std::pair<int, std::string>> meshes_ = {{2, "dp=2"}, {4, "dp=4"}, {4, "dp=2,tp=2"}};

 private:
  ScratchFolder folder_;
};

TEST_F(GenerateOverDp, PrintsWhatOneRankPrints) {
  const Words drawn = {"--json", "--temperature", "1.2", "--seed", "4"};
  for (const auto& [num_prompts, style] : {std::pair{1, Words{}}, {2, drawn}, {5, {"--json"}}}) {
    const Words words = asked(static_cast<size_t>(num_prompts), style);
    const Ending alone = run_meshtrain(words);
    ASSERT_EQ(alone.status, 0) << alone.err;
    EXPECT_FALSE(has(alone.err, "dp ranks")) << alone.err;
    for (const auto& [ranks, mesh] : meshes_) {
      const Ending ending = run_meshtrain_on_ranks(ranks, with(words, {"--mesh", mesh}));
      EXPECT_EQ(ending.status, 0) << ending.err;
      EXPECT_EQ(ending.out, alone.out) << mesh << ", in the order of prompts";
      EXPECT_EQ(count(ending.err, "prompt of "), num_prompts) << ending.err;
      const std::string rows = mesh == "dp=4" ? "4" : "2", texts = num_prompts == 1 ? " text on " : " texts on ";
      EXPECT_TRUE(has(ending.err, std::to_string(num_prompts) + texts + rows + " dp ranks: ")) << ending.err;
    }
  }
}

TEST_F(GenerateOverDp, FromDiskTextsAreTheSame) {
  const ScratchFolder folder;
  const std::string shards = folder.path() / "shards";
  const Words words = asked(5, {"--json"}), disk = with(words, {"--offload", shards});
  const Ending alone = run_meshtrain(words), from_disk = run_meshtrain(disk);
  EXPECT_EQ(from_disk.status, 0) << from_disk.err;
  EXPECT_EQ(from_disk.out, alone.out);
  EXPECT_TRUE(has(from_disk.err, " in fp32 on 1 rank, with 29.5 KiB in " + shards + ", loaded in ")) << from_disk.err;
  for (const auto& [ranks, mesh] : {std::pair{2, "dp=2"}, {2, "tp=2"}, {4, "dp=2,tp=2"}}) {
    const Ending ending = run_meshtrain_on_ranks(ranks, with(disk, {"--mesh", mesh}));
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.out, alone.out) << mesh;
    EXPECT_TRUE(has(ending.err, " KiB in " + shards + ", loaded in ")) << ending.err;
  }
  EXPECT_TRUE(fs::is_empty(shards)) << "the files have no names";
}

// The strings may begin in the prompt: each row looks in its own.
TEST_F(GenerateOverDp, EveryRowEndsAtAString) {
  const json first = json::parse(run_meshtrain(asked(1, {"--json"})).out);
  const std::vector<int64_t> tokens = first.at("tokens");
  const std::string string(tokens.begin() + 3, tokens.begin() + 5);
  const Words words = asked(5, {"--json", "--tokenizer", "bytes", "--stop", string, "--stop", "\7\7"});
  const Ending alone = run_meshtrain(words);
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(json::parse(alone.out.substr(0, alone.out.find('\n'))).at("ended"), "stop");
  for (const auto& [ranks, mesh] : meshes_) {
    const Ending ending = run_meshtrain_on_ranks(ranks, with(words, {"--mesh", mesh}));
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.out, alone.out) << mesh;
  }
}

// The second prompt has 90 of 97 tokens; when each may occur once, its text can have 7 more.
TEST_F(GenerateOverDp, AnErrorOfOneRowIsOneLine) {
  std::string most = "0";
  for (int id = 1; id < 90; ++id) most += "," + std::to_string(id);
  const Words words = {
      "generate", model(),       "--tokens", "1", "--tokens", most, "--max-tokens", "40", "--no-repeat-ngram-size",
      "1",        "--ignore-eos"};
  for (const auto& [ranks, mesh] : meshes_) {
    const Ending ending = run_meshtrain_on_ranks(ranks, with(words, {"--mesh", mesh}));
    EXPECT_EQ(ending.status, 1) << ending.err;
    EXPECT_EQ(count(ending.err, "meshtrain: "), 1) << ending.err;
    EXPECT_TRUE(has(ending.err, "meshtrain: prompt 2: no token is left for position 97: ")) << ending.err;
  }
}

TEST_F(GenerateOverDp, AFolderThatCannotBeMadeIsOneLine) {
  const Words words = asked(1, {"--offload", "/nowhere/shards"});
  const std::string line = "--offload: /nowhere/shards cannot be made: the folder /nowhere does not exist";
  EXPECT_EQ(only_complaint(run_meshtrain(words)), line);
  EXPECT_EQ(only_complaint(run_meshtrain_on_ranks(2, with(words, {"--mesh", "dp=2"}))), line);
}

}  // namespace
}  // namespace meshtrain::testing
