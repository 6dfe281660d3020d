// Words of other systems, short forms and single entries of lists, in files and in --set.

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/recipe/explain.h"
#include "runtime/recipe/foreign_words.h"
#include "runtime/recipe/load.h"
#include "runtime/yaml/known_keys.h"
#include "tests/runtime/recipe/recipe_folder.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

class RecipeWords : public ::testing::Test {
 protected:
  Recipe load(const std::vector<std::string>& overrides, const std::string& more = "") const {
    return load_recipe(folder_.write("r.yaml", kSmallRecipe + more), overrides, "");
  }
  std::string refusal(const std::vector<std::string>& overrides, const std::string& more = "") const {
    return input_error([&] { load(overrides, more); });
  }
  std::string file() const { return (folder_.path() / "r.yaml").string(); }

  const RecipeFolder folder_;
};

TEST_F(RecipeWords, OfOtherSystemsNameTheKeyHere) {
  for (const auto& [word, here] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.lr=1", "it is optimizer.learning_rate"},
           {"train.batch_size=1", "it is train.global_batch"},
           {"train.max_steps=1", "it is train.steps"},
           {"train.grad_clip=1", "it is train.clip_norm"},
           {"train.gradient_accumulation_steps=1", "they are train.global_batch / (dp x train.micro_batch)"},
           {"schedule.warmup=1", "it is schedule.warmup_steps"},
           {"data.path=x", "it is data.tokens"},
           {"model.path=x", "it is model.hf"},
           {"training.seq-len=1", "it is train"},
           {"train.nproc_per_node=1", "it is parallel.mesh"},
           {"lr=1", "it is optimizer.learning_rate"}}) {
    EXPECT_EQ(refusal({word}), "--set " + word + ": " + (word.starts_with("training") ? "training: " : "") +
                                   "unknown key; here " + here);
  }
  EXPECT_EQ(refusal({}, "schedule:\n  warmup: 3\n"),
            file() + ":17:3: schedule.warmup: unknown key; here it is schedule.warmup_steps");
  EXPECT_EQ(refusal({}, "lr_scheduler: {}\n"), file() + ":16:1: lr_scheduler: unknown key; here it is schedule");
}

TEST_F(RecipeWords, BracketsThatDoNotEndAreNoKeys) {
  for (const char* word : {"train[=1", "[=1", "]=1", "train.[=1", "train[]=1", "data.mixture[=1"}) {
    EXPECT_TRUE(has(refusal({word}), "give KEY=VALUE")) << refusal({word});
  }
  EXPECT_NE(refusal({"data.mixture[0.weight=1"}), "");
}

TEST_F(RecipeWords, OfOtherSystemsLeadToKeysThatExist) {
  for (const auto& [word, here] : foreign_words()) {
    EXPECT_EQ(recipe_keys().find(word), nullptr) << word << " is a key";
    if (here.starts_with("it is ") && here.find(' ', 6) == std::string::npos) {
      EXPECT_NE(recipe_keys().find(here.substr(6)), nullptr) << here;
    }
  }
}

TEST_F(RecipeWords, AValueInThePlaceOfAMapIsForItsFirstWord) {
  Recipe recipe = load({"train.activation_checkpointing=full", "parallel.fsdp=shard_grad_op", "schedule=cosine"});
  EXPECT_EQ(recipe.train.activation_checkpointing.mode, "full");
  EXPECT_EQ(recipe.parallel.fsdp.mode, "shard_grad_op");
  EXPECT_EQ(recipe.schedule.name, "cosine");
  recipe = load({}, "schedule: linear\ncheckpoint: 50\n");
  EXPECT_EQ(recipe.schedule.name, "linear");
  EXPECT_EQ(recipe.checkpoint.every, 50);
  // Beside other keys of the map, which stay.
  recipe = load({"schedule=cosine"}, "schedule: {name: linear, warmup_steps: 3}\n");
  EXPECT_EQ(recipe.schedule.name, "cosine");
  EXPECT_EQ(recipe.schedule.warmup_steps, 3);
  EXPECT_EQ(refusal({"train.activation_checkpointing=ful"}),
            "--set train.activation_checkpointing=ful: \"ful\" is not one of none, full, selective; did you mean "
            "\"full\"?");
  EXPECT_EQ(refusal({"train=3"}), "--set train=3: \"3\" is not a map of keys");
}

TEST_F(RecipeWords, TheBeginningOfAPathMayBeLeftOut) {
  EXPECT_EQ(load({"activation_checkpointing=full"}).train.activation_checkpointing.mode, "full");
  EXPECT_EQ(load({"clip_norm=2"}).train.clip_norm, 2);
  EXPECT_EQ(load({"fsdp.prefetch=3"}).parallel.fsdp.prefetch, 3);
  // Two keys end so.
  EXPECT_EQ(refusal({"steps=20"}), "--set steps=20: unknown key; did you mean \"train.steps\"?");
}

TEST_F(RecipeWords, ANumberNamesAnEntryOfAList) {
  const std::string mixture = "  mixture: [{tokens: a.bin, weight: 1}, {tokens: b.bin, weight: 2}]\n";
  const std::string text = std::string(kSmallRecipe).replace(kSmallRecipe.find("  tokens: tokens.bin\n"), 21, mixture);
  const auto load_mixture = [&](const std::vector<std::string>& overrides) {
    return load_recipe(folder_.write("m.yaml", text), overrides, "");
  };
  for (const char* path : {"data.mixture.0.weight=3", "data.mixture[0].weight=3", "mixture.0.weight=3"}) {
    const Recipe recipe = load_mixture({path});
    ASSERT_EQ(recipe.data.mixture.size(), 2u);
    EXPECT_EQ(recipe.data.mixture[0].weight, 3) << path;
    EXPECT_EQ(recipe.data.mixture[0].tokens, folder_.path() / "a.bin");
    EXPECT_EQ(recipe.data.mixture[1].weight, 2);
  }
  const auto refused = [&](const char* text_of_set) { return input_error([&] { load_mixture({text_of_set}); }); };
  EXPECT_EQ(refused("data.mixture.2.weight=3"),
            "--set data.mixture.2.weight=3: there is no entry 2: the list has 2, entries 0 to 1");
  EXPECT_EQ(refused("data.mixture.0.weight=-3"),
            "--set data.mixture.0.weight=-3: -3 is impossible: it must be above 0");
  EXPECT_EQ(refused("data.mixture.0.wieght=3"), "--set data.mixture.0.wieght=3: unknown key; did you mean \"weight\"?");
}

TEST_F(RecipeWords, ATabIsNamed) {
  EXPECT_EQ(refusal({}, "schedule:\n\tname: cosine\n"),
            file() + ":17:1: not valid YAML: a tab indents this line: indent with spaces");
  EXPECT_EQ(refusal({}, "schedule:\n  name: cosine\n  \twarmup_steps: 3\n"),
            file() + ":18:3: not valid YAML: a tab indents this line: indent with spaces");
}

TEST(ExplainKey, SaysKindDefaultWordsAndTheDocumentsText) {
  const std::string precision = explain_key("train.precision");
  for (const char* part :
       {"train.precision: a word\n", "  default: fp32\n", "  one of: fp64, fp32, bf16, bf16_mixed, fp16_mixed\n",
        "weights, gradients and optimizer"}) {
    EXPECT_TRUE(has(precision, part)) << precision;
  }
  EXPECT_TRUE(has(explain_key("optimizer.eps"), "default: 1e-8\n")) << explain_key("optimizer.eps");
  EXPECT_TRUE(has(explain_key("clip_norm"), "train.clip_norm: a number\n"));
  EXPECT_TRUE(has(explain_key("train.steps"), "  needed\n") || has(explain_key("train.steps"), "default: needed\n"));
  EXPECT_TRUE(has(explain_key("data.mixture.ignore_id"), "labels with this id do not count"));
  EXPECT_TRUE(has(explain_key("schedule"), "a single value in its place is its name\n"));
  EXPECT_EQ(input_error([] { explain_key("optimizer.lr"); }),
            "--explain optimizer.lr: unknown key; here it is optimizer.learning_rate");
}

/// One source for people: every key that a recipe can have is in docs/recipe.md, by itself or with the map it is in.
TEST(ExplainKey, EveryKeyHasAText) {
  for (const KnownKey& key : recipe_keys().all()) {
    if (key.path == "extends" || key.kind == "a map of keys") continue;
    EXPECT_FALSE(text_of_key(key.path).text.empty() && text_of_key(key.path).default_value.empty()) << key.path;
  }
  for (const char* key :
       {"train.steps", "schedule.total_steps", "checkpoint.every", "optimizer.betas", "data.tokens"}) {
    EXPECT_TRUE(text_of_key(key).own) << key;
  }
}

/// Words that a key takes stand in its row.
TEST(ExplainKey, TheDocumentNamesEveryWord) {
  for (const KnownKey& key : recipe_keys().all()) {
    const KeyText about = text_of_key(key.path);
    if (!about.own || key.kind != "a word" || key.path.starts_with("evaluate.")) continue;  // as those of data
    for (const std::string& word : key.rule.choices) {
      if (word == "true" || word == "false" || key.path == "model.family") continue;
      EXPECT_TRUE(has(about.text + " " + about.default_value, word)) << key.path << " does not name " << word;
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
