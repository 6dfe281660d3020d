#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/program/recipe/load.h"
#include "tests/runtime/program/recipe/recipe_folder.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

struct BadLine {
  std::string text;      // line 16, after the small recipe
  std::string expected;  // text after the name of the file
};

class RecipeLine : public ::testing::TestWithParam<BadLine> {};

TEST_P(RecipeLine, IsRefusedWithItsLocation) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe + GetParam().text);
  EXPECT_EQ(input_error([&] { load_recipe(file, {}, ""); }), file.string() + GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, RecipeLine,
    ::testing::Values(BadLine{"trian: 3\n", ":16:1: trian: unknown key; did you mean \"train\"?"},
                      BadLine{"schedule:\n  wramup_steps: 3\n",
                              ":17:3: schedule.wramup_steps: unknown key; did you mean \"warmup_steps\"?"},
                      BadLine{"schedule: {learning_rate: 3}\n",
                              ":16:12: schedule.learning_rate: unknown key; did you mean \"optimizer.learning_rate\"?"},
                      BadLine{"parallel: {context: {algoritm: ring}}\n",
                              ":16:22: parallel.context.algoritm: unknown key; did you mean \"algorithm\"?"},
                      BadLine{"zebra: null\n", ":16:1: zebra: unknown key"},
                      BadLine{"train: {steps: 3}\n", ":16:1: train: appears twice, first in line 10: remove one"},
                      BadLine{"schedule: {name: wsd, name: wsd}\n",
                              ":16:23: schedule.name: appears twice, first in line 16: remove one"},
                      BadLine{"? [a]\n: 3\n", ":16:3: a key must be a word, not a list"},
                      BadLine{"\"a\\nb\": 3\n", ":16:1: \"a\\x0ab\" is not a key"}));

INSTANTIATE_TEST_SUITE_P(
    Values, RecipeLine,
    ::testing::Values(
        BadLine{"parallel: 3\n", ":16:11: parallel: \"3\" is not a map of keys"},
        BadLine{"schedule: {warmup_steps: many}\n", ":16:26: schedule.warmup_steps: \"many\" is not a whole number"},
        BadLine{"schedule: {warmup_steps: 1.5}\n", ":16:26: schedule.warmup_steps: \"1.5\" is not a whole number"},
        BadLine{"schedule: {warmup_steps: \"1\"}\n",
                ":16:26: schedule.warmup_steps: \"1\" is not a whole number, because the quotes make it a string: "
                "remove them"},
        BadLine{"schedule: {warmup_steps: \"1.5\"}\n", ":16:26: schedule.warmup_steps: \"1.5\" is not a whole number"},
        BadLine{
            "schedule: {min_ratio: '1e-3'}\n",
            ":16:23: schedule.min_ratio: \"1e-3\" is not a number, because the quotes make it a string: remove them"},
        BadLine{"parallel: {mesh: {dp: \"2\"}}\n",
                ":16:23: parallel.mesh.dp: \"2\" is not a whole number nor auto, because the quotes make it a string: "
                "remove them"},
        BadLine{"schedule: {warmup_steps: 99999999999999999999}\n",
                ":16:26: schedule.warmup_steps: 99999999999999999999 is impossible: it must be at most "
                "9223372036854775807"},
        BadLine{"schedule: {warmup_steps: -1}\n",
                ":16:26: schedule.warmup_steps: -1 is impossible: it must be at least 0"},
        BadLine{"schedule: {min_ratio: 1.5}\n", ":16:23: schedule.min_ratio: 1.5 is impossible: it must be at most 1"},
        BadLine{"schedule: {min_ratio: .nan}\n", ":16:23: schedule.min_ratio: \".nan\" is not a number"},
        BadLine{"schedule: {min_ratio: inf}\n", ":16:23: schedule.min_ratio: \"inf\" is not a number"},
        BadLine{"schedule: {min_ratio: [0.5]}\n", ":16:23: schedule.min_ratio: a list is not a number"},
        BadLine{
            "schedule: {name: cosin}\n",
            ":16:18: schedule.name: \"cosin\" is not one of constant, cosine, linear, wsd; did you mean \"cosine\"?"},
        BadLine{"schedule: {name: [cosine]}\n", ":16:18: schedule.name: a list is not a single word"},
        BadLine{"parallel: {order: [dp, dp]}\n",
                ":16:19: parallel.order: [dp, dp] names dp more than once: name each axis once"},
        BadLine{"parallel: {order: [dp, tp, ep]}\n",
                ":16:28: parallel.order: \"ep\" is not one of dp, tp, cp, pp; here experts are cut over "
                "parallel.mesh.ep, which takes the innermost axes of parallel.order first"},
        BadLine{"parallel: {mesh: {dp: 0}}\n", ":16:23: parallel.mesh.dp: 0 is impossible: it must be at least 1"},
        BadLine{"parallel: {mesh: {zp: 2}}\n",
                ":16:19: parallel.mesh: \"zp\" is not one of dp, tp, cp, pp, ep; did you mean \"dp\"?"},
        BadLine{"parallel: {mesh: {experts: 2}}\n",
                ":16:19: parallel.mesh: \"experts\" is not one of dp, tp, cp, pp, ep; here it is ep"},
        BadLine{"parallel: {mesh: 8}\n",
                ":16:18: parallel.mesh: \"8\" is not a map of axes and sizes, as in {pp: 2, dp: 2, tp: auto}"},
        BadLine{"parallel: {fsdp: {mode: zero3}}\n",
                ":16:25: parallel.fsdp.mode: \"zero3\" is not one of auto, no_shard, shard_optimizer, shard_grad_op, "
                "full_shard, hybrid_shard; here it is full_shard"},
        BadLine{"name: a/b\n", ":16:7: name: a/b cannot be the name of a folder"},
        BadLine{"device: !gpu cpu\n", ":16:9: the tag \"!gpu\" is not supported: remove it"}));

INSTANTIATE_TEST_SUITE_P(
    Data, RecipeLine,
    ::testing::Values(
        BadLine{"evaluate: {every: 3}\n", ":16:11: evaluate.tokens: must be given"},
        BadLine{"evaluate: {every: 3, tokns: a}\n", ":16:22: evaluate.tokns: unknown key; did you mean \"tokens\"?"},
        BadLine{"evaluate: {samples: 3}\n", ":16:21: evaluate.samples: needs evaluate.tokens, the file to evaluate on"},
        BadLine{"evaluate: {dtype: uint8}\n", ":16:19: evaluate.dtype: needs evaluate.tokens, the file to evaluate on"},
        BadLine{"evaluate: {tokens: a, samples: 0}\n",
                ":16:32: evaluate.samples: 0 is impossible: it must be at least 1"},
        BadLine{"evaluate: {tokens: a, documents: ends}\n",
                ":16:34: evaluate.documents: \"ends\" is not a whole number nor index"},
        BadLine{"evaluate: {tokens: a, documents: -1}\n",
                ":16:34: evaluate.documents: -1 is impossible: it must be at least 0"},
        BadLine{"evaluate: {tokens: a, weight: 2}\n",
                ":16:23: evaluate.weight: unknown key; did you mean \"data.mixture.weight\"?"}));

struct BadMixture {
  std::string text;  // replaces data.tokens, line 9
  std::string expected;
};

class RecipeMixture : public ::testing::TestWithParam<BadMixture> {};

TEST_P(RecipeMixture, IsRefusedWithItsLocation) {
  const RecipeFolder folder;
  std::string text = kSmallRecipe;
  const std::string line = "  tokens: tokens.bin\n";
  text.replace(text.find(line), line.size(), GetParam().text);
  const fs::path file = folder.write("r.yaml", text);
  EXPECT_EQ(input_error([&] { load_recipe(file, {}, ""); }), file.string() + GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Mixtures, RecipeMixture,
    ::testing::Values(BadMixture{"  mixture: [{tokens: a}]\n", ":9:13: data.mixture[0].weight: must be given"},
                      BadMixture{"  mixture: [{weight: 1}]\n", ":9:13: data.mixture[0].tokens: must be given"},
                      BadMixture{"  mixture:\n    - {tokens: a, weight: 1}\n    - {tokns: b, weight: 1}\n",
                                 ":11:8: data.mixture[1].tokns: unknown key; did you mean \"tokens\"?"},
                      BadMixture{"  tokns: a\n", ":9:3: data.tokns: unknown key; did you mean \"tokens\"?"},
                      BadMixture{"  mixture: [{tokens: a, weight: 0}]\n",
                                 ":9:33: data.mixture[0].weight: 0 is impossible: it must be above 0"},
                      BadMixture{"  mixture: [{tokens: a, weight: 1, wieght: 2}]\n",
                                 ":9:36: data.mixture[0].wieght: unknown key; did you mean \"weight\"?"},
                      BadMixture{
                          "  mixture: []\n",
                          ":9:12: data.mixture: is an empty list: name its files, or one file alone as data.tokens"},
                      BadMixture{"  mixture: 3\n", ":9:12: data.mixture: \"3\" is not a list"},
                      BadMixture{"  mixture: [{tokens: a, weight: 1}]\n  tokens: b\n",
                                 ":10:11: data.tokens: describes one file: set it in the entries of data.mixture, or "
                                 "leave data.mixture out"},
                      BadMixture{"  mixture: [{tokens: a, weight: 1}]\n  loss_mask: b\n",
                                 ":10:14: data.loss_mask: describes one file: set it in the entries of data.mixture, "
                                 "or leave data.mixture out"}));

INSTANTIATE_TEST_SUITE_P(
    Texts, RecipeLine,
    ::testing::Values(BadLine{"device: [cpu\n", ":17:1: not valid YAML: end of sequence flow not found"},
                      BadLine{"device: cpu\n---\na: 1\n",
                              ":17:1: a second document begins here: a recipe must be one document"},
                      BadLine{"device: &a [*a]\n", ":16:13: an alias inside the value that it stands for"},
                      BadLine{std::string("device: c\0pu\n", 13), ": not a text file"}));

struct BadSetting {
  std::vector<std::string> settings;
  std::string expected;
};

class Override : public ::testing::TestWithParam<BadSetting> {};

TEST_P(Override, IsRefusedByName) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  EXPECT_EQ(input_error([&] { load_recipe(file, GetParam().settings, ""); }), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Override,
    ::testing::Values(
        BadSetting{{"train.stpes=20"}, "--set train.stpes=20: unknown key; did you mean \"steps\"?"},
        BadSetting{{"steps=20"}, "--set steps=20: unknown key; did you mean \"train.steps\"?"},
        BadSetting{{"train={stpes: 20}"}, "--set train={stpes: 20}: train.stpes: unknown key; did you mean \"steps\"?"},
        BadSetting{{"train.steps=0"}, "--set train.steps=0: 0 is impossible: it must be at least 1"},
        BadSetting{{"train.seed=-1"}, "--set train.seed=-1: -1 is impossible: it must be at least 0"},
        BadSetting{{"train.seed=9223372036854775808"},
                   "--set train.seed=9223372036854775808: 9223372036854775808 is impossible: it must be at most "
                   "9223372036854775807"},
        BadSetting{{"train.seed=-99999999999999999999"},
                   "--set train.seed=-99999999999999999999: -99999999999999999999 is impossible: it must be at least "
                   "0"},
        BadSetting{{"train.micro_batch=99999999999999999999"},
                   "--set train.micro_batch=99999999999999999999: 99999999999999999999 is impossible: it must be at "
                   "most 2147483647"},
        BadSetting{{"data={tokens: null, mixture: []}"},
                   "--set data={tokens: null, mixture: []}: data.mixture: is an empty list: name its files, or one "
                   "file alone as data.tokens"},
        BadSetting{{"train.steps.x=0"}, "--set train.steps.x=0: train.steps: a map is not a whole number"},
        BadSetting{{"train"}, "--set \"train\": give KEY=VALUE, as in --set train.steps=20"},
        BadSetting{{"=3"}, "--set \"=3\": give KEY=VALUE, as in --set train.steps=20"},
        BadSetting{{"train..steps=3"}, "--set \"train..steps=3\": give KEY=VALUE, as in --set train.steps=20"},
        BadSetting{{"extends=x.yaml"}, "--set extends=x.yaml: only a file extends another one"},
        BadSetting{{"data.tokens=\"\""}, "--set data.tokens=\"\": is an empty path: write null for none"},
        BadSetting{{"data.tokens=\"a\\0b\""}, "--set data.tokens=\"a\\0b\": \"a\\x00b\" has control characters"},
        BadSetting{{"data.shuffle=yes"}, "--set data.shuffle=yes: \"yes\" is neither true nor false"},
        BadSetting{{"data.shuffle=\"true\""},
                   "--set data.shuffle=\"true\": \"true\" is neither true nor false, because the quotes make it a "
                   "string: remove them"},
        BadSetting{{"optimizer.betas=\"[0.9, 0.95]\""},
                   "--set optimizer.betas=\"[0.9, 0.95]\": \"[0.9, 0.95]\" is not a list of two numbers, because the "
                   "quotes make it a string: remove them"},
        BadSetting{{"train.loss_scale={static: 4, initial: 8}"},
                   "--set train.loss_scale={static: 4, initial: 8}: train.loss_scale.initial: belongs to a dynamic "
                   "scale: leave it or train.loss_scale.static out"},
        BadSetting{{"train.loss_scale.backoff_factor=1"},
                   "--set train.loss_scale.backoff_factor=1: 1 is impossible: it must be below 1"},
        BadSetting{{"train.precision=fp16"},
                   "--set train.precision=fp16: \"fp16\" is not one of fp64, fp32, bf16, bf16_mixed, fp16_mixed; here "
                   "it is fp16_mixed"},
        BadSetting{{"train.non_finite=ignore"}, "--set train.non_finite=ignore: \"ignore\" is not one of stop, skip"},
        BadSetting{{"optimizer.betas=[1]"}, "--set optimizer.betas=[1]: a list of 1 is not a list of two numbers"},
        BadSetting{{"optimizer.betas=[0, 1]"}, "--set optimizer.betas=[0, 1]: 1 is impossible: it must be below 1"}));

INSTANTIATE_TEST_SUITE_P(
    Models, Override,
    ::testing::Values(
        BadSetting{{"model.num_key_value_heads=3"},
                   "--set model.num_key_value_heads=3: 3 does not divide num_attention_heads 4"},
        BadSetting{{"model.hidden_size=62"},
                   "--set model.hidden_size=62: 62 is not a multiple of num_attention_heads 4: change one, or give "
                   "head_dim"},
        BadSetting{{"model.freeze_padding_row=true"},
                   "--set model.freeze_padding_row=true: true needs model.pad_token_id, the token whose row it is"},
        BadSetting{{"model.pad_token_id=256"}, "--set model.pad_token_id=256: 256 is not a token: vocab_size is 256"},
        BadSetting{{"model.head_dim=7"}, "--set model.head_dim=7: 7 is odd: rotary positions rotate pairs of features"},
        BadSetting{
            {"model.family=gpt2"},
            "--set model.family=gpt2: \"gpt2\" is not one of llama, mistral, qwen2, qwen3, smollm3, "
            "granite, phi3, olmo2, olmo3, gemma2, gemma3_text, mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, "
            "granitemoeshared, dots1, glm4_moe, gpt_oss"},
        BadSetting{{"model.num_experts=4"}, "--set model.num_experts=4: is not a key of family llama"},
        BadSetting{{"model.family=mixtral", "model.num_experts=4", "model.num_experts_per_tok=5"},
                   "--set model.num_experts_per_tok=5: 5 is more than num_experts 4"},
        BadSetting{
            {"model.family=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2", "model.mlp_only_layers=[0]"},
            "--set model.mlp_only_layers=[0]: is not a key of family mixtral"},
        BadSetting{{"model.family=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                    "model.moe_intermediate_size=32", "model.mlp_only_layers=[2]"},
                   "--set model.mlp_only_layers=[2]: has 2: the model has layers 0 to 1"},
        BadSetting{{"model.family=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                    "model.moe_intermediate_size=32", "model.mlp_only_layers=[1, 0, 1]"},
                   "--set model.mlp_only_layers=[1, 0, 1]: leaves no layer with experts: use a family without them"},
        BadSetting{{"model.family=qwen2", "model.attention_bias=true"},
                   "--set model.attention_bias=true: true is not supported by family qwen2"},
        BadSetting{{"model.family=qwen3", "model.mlp_bias=true"},
                   "--set model.mlp_bias=true: true is not supported by family qwen3"},
        BadSetting{
            {"train.activation_checkpointing.mode=ful"},
            "--set train.activation_checkpointing.mode=ful: \"ful\" is not one of none, full, selective; did you "
            "mean \"full\"?"},
        BadSetting{{"train.activation_checkpointing.every=2"},
                   "--set train.activation_checkpointing.every=2: needs train.activation_checkpointing.mode: full or "
                   "selective"},
        BadSetting{{"parallel.fsdp.offload.path=/tmp"},
                   "--set parallel.fsdp.offload.path=/tmp: needs parallel.fsdp.offload.to: disk"},
        BadSetting{{"parallel.fsdp.offload.parameters=false"},
                   "--set parallel.fsdp.offload.parameters=false: needs parallel.fsdp.offload.to: host or disk"},
        BadSetting{
            {"train.activation_checkpointing={mode: full, every: 0}"},
            "--set train.activation_checkpointing={mode: full, every: 0}: train.activation_checkpointing.every: 0 "
            "is impossible: it must be at least 1"},
        BadSetting{{"parallel=full"}, "--set parallel=full: \"full\" is not a map of keys"},
        BadSetting{{"model.init=pretrained"},
                   "--set model.init=pretrained: pretrained needs model.hf, the folder of the weights"},
        BadSetting{{"model.hf=/nowhere"},
                   "--set model.hf=/nowhere: there is no folder /nowhere: meshtrain does not download models, but hf "
                   "download ORG/NAME "
                   "--local-dir /nowhere fetches a model of the Hugging Face hub"}));

INSTANTIATE_TEST_SUITE_P(
    Families, Override,
    ::testing::Values(
        BadSetting{{"model.sliding_window=8"}, "--set model.sliding_window=8: is not a key of family llama"},
        BadSetting{{"model.family=granite", "model.embedding_multiplier=0"},
                   "--set model.embedding_multiplier=0: 0 is impossible: it must be above 0"},
        BadSetting{{"model.family=smollm3", "model.no_rope_layers=[1]"},
                   "--set model.no_rope_layers=[1]: has 1 entry for 2 layers"},
        BadSetting{{"model.family=smollm3", "model.no_rope_layers=[1, 2]"},
                   "--set model.no_rope_layers=[1, 2]: 2 is impossible: it must be at most 1"},
        BadSetting{{"model.family=smollm3", "model.no_rope_layers=1"},
                   "--set model.no_rope_layers=1: \"1\" is not a list of numbers"},
        BadSetting{{"model.family=gemma2", "model.layer_types=[sliding_attention, full_attention]"},
                   "--set model.layer_types=[sliding_attention, full_attention]: has sliding_attention, which needs a "
                   "sliding_window"},
        BadSetting{
            {"model.family=phi3", "model.partial_rotary_factor=0.1"},
            "--set model.partial_rotary_factor=0.1: rotates 1 feature of a head: rotary positions rotate pairs of "
            "features"}));

// Returns settings of model.rope_scaling and their errors.
std::vector<BadSetting> bad_scalings() {
  const std::string key = "model.rope_scaling";
  const auto full = [&](const std::string& map, const std::string& expected) {
    return BadSetting{{key + "=" + map}, "--set " + key + "=" + map + ": " + expected};
  };
  return {
      full("{rope_type: mrope, factor: 8}",
           key + ".rope_type: \"mrope\" is not one of default, linear, llama3, yarn, longrope, dynamic"),
      full("{rope_type: dynamic, factor: 8}", "rope_type is dynamic, which needs max_position_embeddings"),
      full("{rope_type: longrope, original_max_position_embeddings: 64, short_factor: [1], long_factor: [1]}",
           "rope_type is longrope, which a llama does not have"),
      full("{rope_type: linear, factor: 0.5}", key + ".factor: 0.5 is impossible: it must be at least 1"),
      full("{rope_type: linear, factor: 2, low_freq_factor: 1}",
           key + ".low_freq_factor: is a key of rope_type llama3, not of linear"),
      full("{rope_type: linear, factor: 2, original_max_position_embeddings: 1}",
           key + ".original_max_position_embeddings: is a key of rope_type llama3, yarn, longrope, not of linear"),
      full("{rope_type: llama3, factor: 2, low_freq_factor: 1, high_freq_factor: 4, "
           "original_max_position_embeddings: 64, truncate: true}",
           key + ".truncate: is a key of rope_type yarn, not of llama3"),
      full("{rope_type: default, factor: 2}",
           key + ".factor: is a key of rope_type linear, llama3, yarn, longrope, dynamic, not of default"),
      full("{rope_type: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 1, "
           "original_max_position_embeddings: 64}",
           "high_freq_factor is 1: it must be above low_freq_factor 4"),
      full("{rope_type: yarn, factor: 8}",
           "original_max_position_embeddings is missing, and so is max_position_embeddings: yarn needs one of them"),
      full("{rope_type: yarn, factor: 8, original_max_position_embeddings: 64, beta_fast: 1}",
           "beta_fast is 1: it must be above beta_slow 1"),
      full("{rope_type: yarn, factor: 8, original_max_position_embeddings: 64, mscale: 1}",
           "mscale has no effect alone: give both mscale and mscale_all_dim, or neither"),
      full("{rope_type: yarn, factor: 8, attention_factor: 0}",
           key + ".attention_factor: 0 is impossible: it must be above 0"),
      full("{rope_type: yarn, factor: 8, attention_factor: much}", key + ".attention_factor: \"much\" is not a number"),
      full("{rope_type: yarn, factor: 8, high_freq_factor: 4}",
           key + ".high_freq_factor: is a key of rope_type llama3, not of yarn"),
      full("{rope_type: yarn, factor: 8, beta_fats: 4}", key + ".beta_fats: unknown key; did you mean \"beta_fast\"?"),
  };
}

INSTANTIATE_TEST_SUITE_P(RotaryScalings, Override, ::testing::ValuesIn(bad_scalings()));

TEST(RecipeErrors, NameWhatIsMissing) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  const std::string name = file.string();
  EXPECT_EQ(input_error([&] { load_recipe(file, {"train.steps=null"}, ""); }), "--set train.steps=null: must be given");
  EXPECT_EQ(input_error([&] { load_recipe(file, {"data=null"}, ""); }), name + ": data.tokens: must be given");
  EXPECT_EQ(input_error([&] { load_recipe(file, {"model=null"}, ""); }),
            name + ": model.hf: must be given (a Hugging Face folder), or else the shape: hidden_size, ...");
  const auto scaling = [&](const std::string& map) {
    return input_error([&] { load_recipe(file, {"model.rope_scaling=" + map}, ""); });
  };
  EXPECT_EQ(input_error([&] { load_recipe(file, {"parallel.fsdp.offload={to: disk}"}, ""); }),
            "--set parallel.fsdp.offload={to: disk}: parallel.fsdp.offload.path: must be given");
  EXPECT_EQ(scaling("{factor: 8}"),
            "--set model.rope_scaling={factor: 8}: model.rope_scaling.rope_type: must be given");
  EXPECT_EQ(scaling("{rope_type: linear}"),
            "--set model.rope_scaling={rope_type: linear}: model.rope_scaling.factor: must be given");
  const std::string llama3 = "{rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4}";
  EXPECT_EQ(scaling(llama3), "--set model.rope_scaling=" + llama3 +
                                 ": model.rope_scaling.original_max_position_embeddings: must be given");
}

TEST(RecipeErrors, NameAllThatIsMissing) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  const std::string needs_model =
      ": model.hf: must be given (a Hugging Face folder), or else the shape: hidden_size, ...";
  const fs::path empty = folder.write("empty.yaml", "model: {num_hidden_layers: 3}\n");
  std::string missing = "6 keys are missing:\n  " + empty.string() + ":1:8" + needs_model;
  for (const char* key :
       {"data.tokens", "train.sequence_length", "train.global_batch", "train.steps", "optimizer.learning_rate"}) {
    missing += "\n  " + empty.string() + ": " + key + ": must be given";
  }
  EXPECT_EQ(input_error([&] { load_recipe(empty, {}, ""); }), missing);
  EXPECT_EQ(input_error([&] {
              load_recipe(file, {"model.vocab_size=null", "model.num_attention_heads=null"}, "");
            }),
            "2 keys are missing:\n  --set model.num_attention_heads=null: must be given\n"
            "  --set model.vocab_size=null: must be given");
  // A missing key is named, not what follows from it.
  EXPECT_EQ(input_error([&] { load_recipe(file, {"model.rope_scaling={low_freq_factor: 1}"}, ""); }),
            "--set model.rope_scaling={low_freq_factor: 1}: model.rope_scaling.rope_type: must be given");
}

TEST(RecipeErrors, NameTheMesh) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  EXPECT_EQ(input_error([&] { load_recipe(file, {}, "dp=2,zp=2"); }),
            "--mesh dp=2,zp=2: \"zp\" is not one of dp, tp, cp, pp, ep; did you mean \"dp\"?");
  EXPECT_NE(input_error([&] { load_recipe(file, {}, "dp=two"); }).find("dp=two"), std::string::npos);
}

TEST(RecipeErrors, NameTheFileThatSaysIt) {
  const RecipeFolder folder;
  const fs::path base = folder.write("base.yaml", kSmallRecipe + "schedule: {name: cosin}\n");
  const fs::path top = folder.write("top.yaml", "extends: base.yaml\n");
  EXPECT_EQ(input_error([&] { load_recipe(top, {}, ""); }).rfind(base.string() + ":16:18: schedule.name", 0), 0u);

  const fs::path lost = folder.write("lost.yaml", "extends: nowhere.yaml\n");
  EXPECT_EQ(
      input_error([&] { load_recipe(lost, {}, ""); }),
      lost.string() + ":1:10: extends: " + (folder.path() / "nowhere.yaml").string() + ": No such file or directory");
  const fs::path list = folder.write("list.yaml", "extends: [base.yaml]\n");
  EXPECT_EQ(input_error([&] { load_recipe(list, {}, ""); }),
            list.string() + ":1:10: extends: a list is not the path of a recipe");
}

TEST(RecipeErrors, RefuseCycles) {
  const RecipeFolder folder;
  const fs::path a = folder.write("a.yaml", "extends: b.yaml\n");
  const fs::path b = folder.write("b.yaml", "extends: ./a.yaml\n");
  EXPECT_EQ(input_error([&] { load_recipe(a, {}, ""); }),
            b.string() + ":1:10: extends: " + a.string() + ": extends itself, over 2 files");
}

TEST(RecipeErrors, RefuseWhatIsNoRecipe) {
  const RecipeFolder folder;
  const auto error_of = [&](const std::string& text) {
    const fs::path file = folder.write("r.yaml", text);
    return input_error([&] { load_recipe(file, {}, ""); }).substr(file.string().size());
  };
  EXPECT_EQ(error_of(""), ": an empty recipe");
  EXPECT_EQ(error_of("# nothing\n"), ": an empty recipe");
  EXPECT_EQ(error_of("- a\n"), ":1:1: a recipe is a map of keys (model:, data:, train:, ...), not a list");
  EXPECT_EQ(error_of("hello\n"), ":1:1: a recipe is a map of keys (model:, data:, train:, ...), not \"hello\"");
  EXPECT_EQ(error_of(std::string(size_t{1} << 21, '#')), ": more than 1 MiB: this is not a recipe");
  EXPECT_NE(error_of(std::string(100, '[') + std::string(100, ']')).find("nested too deeply"), std::string::npos);
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string here = "a" + std::to_string(i), before = "*a" + std::to_string(i - 1);
    bomb += here + ": &" + here + " [" + before + ", " + before + ", " + before + ", " + before + "]\n";
  }
  EXPECT_NE(error_of(bomb).find("too many values for a recipe"), std::string::npos);
  bomb = "long: &long " + std::string(100'000, 'x') + "\nlist: [";
  for (int i = 0; i < 20'000; ++i) bomb += "*long, ";
  EXPECT_EQ(error_of(bomb + "*long]\n").find(":2:"), 0U);
  EXPECT_NE(error_of(bomb + "*long]\n").find("stand for more than 4 MiB of text: this is not a recipe"),
            std::string::npos);

  EXPECT_EQ(input_error([&] { load_recipe(folder.path(), {}, ""); }),
            folder.path().string() + ": is a folder: give the recipe in it, such as " +
                (folder.path() / "recipe.yaml").string());
  EXPECT_EQ(input_error([&] { load_recipe("/nowhere/r.yaml", {}, ""); }), "/nowhere/r.yaml: No such file or directory");
  EXPECT_NE(input_error([&] { load_recipe(std::string(5000, 'x'), {}, ""); }).find("File name too long"),
            std::string::npos);
  EXPECT_EQ(input_error([] { load_recipe("/dev/zero", {}, ""); }), "/dev/zero: more than 1 MiB: this is not a recipe");
}

}  // namespace
}  // namespace meshtrain::testing
