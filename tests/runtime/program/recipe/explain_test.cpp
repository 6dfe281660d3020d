#include "runtime/program/recipe/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/known_keys.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

TEST(ExplainKey, SaysKindDefaultWordsAndTheDocumentsText) {
  const std::string precision = explain_key("train.precision");
  for (const char* part :
       {"train.precision: a word\n", "  default: fp32\n", "  one of: fp64, fp32, bf16, bf16_mixed, fp16_mixed\n",
        "for weights, gradients and optimizer state alike"}) {
    EXPECT_TRUE(has(precision, part)) << precision;
  }
  const std::string unit = explain_key("parallel.fsdp.unit");
  for (const char* part : {"parallel.fsdp.unit: a word\n", "  default: block\n", "  one of: block, sublayer\n",
                           "Chooses the part of the model that is gathered"}) {
    EXPECT_TRUE(has(unit, part)) << unit;
  }
  EXPECT_TRUE(has(explain_key("optimizer.eps"), "default: 1e-8\n")) << explain_key("optimizer.eps");
  EXPECT_TRUE(has(explain_key("clip_norm"), "train.clip_norm: a number\n"));
  EXPECT_TRUE(has(explain_key("train.steps"), ": a whole number\n  needed\n"));
  EXPECT_TRUE(has(explain_key("data.mixture.ignore_id"), "Leaves labels with this id out of the loss."));
  EXPECT_TRUE(has(explain_key("schedule"), "a single value sets its name\n"));
  for (const std::string word : {"optimizer.lr", "lr"}) {
    EXPECT_EQ(explain_key(word),
              word + " is called optimizer.learning_rate here\n" + explain_key("optimizer.learning_rate"));
  }
}

TEST(ExplainKey, SaysWhereAKeyIsNeededAndWhatItsDefaultIs) {
  for (const auto& [key, text] : std::vector<std::pair<std::string, std::string>>{
           {"data.mixture.tokens", "a path\n  needed\n  Names the file"},
           {"data.mixture.weight", "a number\n  needed\n  above 0\n  Sets the share"},
           {"data.tokens", "a path\n  needed without mixture\n"},
           {"evaluate.dtype",
            "default: that of data.dtype\n  one of: uint8, uint16, uint32, megatron\n  Sets the type of the ids"},
           {"evaluate.shuffle", "true or false\n  default: false\n"},
           {"parallel.mesh.dp", "a whole number\n  at least 1, or the word auto\n"},
           {"evaluate.boundary_labels", "default: that of data.boundary_labels\n"},
           {"parallel.mesh", "  keys: dp, tp, cp, pp, ep\n  each size at least 1, or the word auto\n"},
           {"parallel.order", "  each one of: dp, tp, cp, pp\n"},
           {"model.rope_scaling.low_freq_factor", "  needed for llama3\n  above 0\n"},
           {"data.documents", "  default: none\n  at least 0, or the word index\n"},
           {"schedule.warmup_steps", "in which the learning rate grows to its peak"},
           {"train.profile.ranks", "  each at least 0\n  Lists the ranks that write a trace.\n"},
           {"extends", "Names another recipe that this one starts from"},
           {"optimizer.decay",
            "  one of: all, matrices\n  Says whether norms and biases decay too, or matrices alone.\n"}}) {
    EXPECT_TRUE(has(explain_key(key), text)) << explain_key(key);
  }
  for (const KnownKey& key : recipe_keys().all()) {
    EXPECT_FALSE(has(explain_key(key.path), "default: needed")) << key.path;
  }
}

TEST(ExplainKey, AKeyOfTheShapeHasASentenceOfItsOwn) {
  for (const KnownKey& key : recipe_keys().all()) {
    if (!key.path.starts_with("model.")) continue;
    EXPECT_TRUE(text_of_key(key.path).own) << key.path;
  }
  const std::string text = explain_key("model.num_key_value_heads");
  EXPECT_TRUE(has(text, "number of key and value heads of a layer") && !has(text, "gemma")) << text;
  EXPECT_TRUE(has(explain_key("model.rope_scaling.beta_fast"), "  default: 32\n"));
}

TEST(ExplainKey, PointsToPagesAndNotBelow) {
  for (const KnownKey& key : recipe_keys().all()) {
    const std::string text = explain_key(key.path);
    EXPECT_FALSE(has(text, "see below") || has(text, "(below)") || has(text, "](")) << text;
  }
  EXPECT_TRUE(has(explain_key("train.precision"), "docs/recipe.md, \"Precision\"")) << explain_key("train.precision");
}

TEST(ExplainKey, TakesNumbersOfEntriesAndSections) {
  const std::string weight = explain_key("data.mixture.weight");
  for (const char* path : {"data.mixture.0.weight", "data.mixture[0].weight", "mixture.0.weight"}) {
    EXPECT_EQ(explain_key(path), weight);
  }
  const std::string section = explain_key("checkpoint");
  for (const char* key : {"every", "keep_last", "keep_every"}) {
    EXPECT_TRUE(has(section, "    checkpoint." + std::string(key) + " ")) << section;
  }
}

TEST(ExplainKey, AnUnknownKeyIsAnsweredWithThoseNearIt) {
  EXPECT_EQ(input_error([] { explain_key("batch"); }),
            "--explain batch: unknown key; similar keys: train.global_batch, train.micro_batch");
  EXPECT_EQ(input_error([] { explain_key("train.stpes"); }),
            "--explain train.stpes: unknown key; did you mean \"steps\"?");
  EXPECT_EQ(input_error([] { explain_key("zebra"); }),
            "--explain zebra: unknown key; meshtrain recipe --explain lists all keys");
  const std::string every = input_error([] { explain_key("every"); });
  EXPECT_TRUE(has(every, "similar keys: ") && has(every, "checkpoint.every") && has(every, "evaluate.every")) << every;
  EXPECT_EQ(explain_key("weight_decay"), explain_key("optimizer.weight_decay"));
  EXPECT_EQ(explain_key("steps"), explain_key("train.steps"));
}

/// Every key that a recipe can have is in docs/recipe.md, by itself or with the map it is in.
TEST(ExplainKey, EveryKeyHasAText) {
  for (const KnownKey& key : recipe_keys().all()) {
    if (key.kind == "a map of keys") continue;
    EXPECT_FALSE(text_of_key(key.path).text.empty() && text_of_key(key.path).default_value.empty()) << key.path;
  }
  for (const char* key :
       {"train.steps", "schedule.total_steps", "checkpoint.every", "optimizer.betas", "data.tokens"}) {
    EXPECT_TRUE(text_of_key(key).own) << key;
  }
}

/// A row says in full sentences what its key does; the row of a number also gives its unit.
TEST(ExplainKey, ATextIsSentences) {
  const std::vector<std::string> units = {"number", "steps",   "seconds", "share",     "FLOP/s",    "norm",  "id",
                                          "base",   "divisor", "tokens",  "deviation", "factor",    "scale", "Lists",
                                          "peak",   "length",  "Divides", "Caps",      "Multiplies"};
  for (const KnownKey& key : recipe_keys().all()) {
    const KeyText about = text_of_key(key.path);
    if (!about.own || about.text.empty()) continue;
    std::string text = about.text, words;
    for (const std::string& word : key.rule.choices) words += (words.empty() ? "" : " ") + word;
    if (!words.empty() && text.starts_with(words + ": ")) text = text.substr(words.size() + 2);
    const std::string verb = text.substr(0, text.find(' '));
    EXPECT_TRUE(std::isupper(verb[0]) && verb.ends_with('s') && text.ends_with('.')) << key.path << ": " << text;
    if (!has(key.kind, "number") && !has(key.kind, "size")) continue;
    EXPECT_TRUE(std::ranges::any_of(units, [&](const auto& unit) { return has(text, unit); }))
        << key.path << ": " << text;
  }
}

/// The row of a key lists the words that it takes.
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
