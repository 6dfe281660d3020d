#include "runtime/program/recipe/load.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "mesh/base/error.h"
#include "mesh/layout.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

TEST(LoadRecipe, FillsInDefaults) {
  const RecipeFolder folder;
  const Recipe recipe = load_recipe(folder.write("small.yaml", kSmallRecipe), {}, "");
  EXPECT_EQ(recipe.name, "small");
  EXPECT_EQ(recipe.file, folder.path() / "small.yaml");
  EXPECT_EQ(recipe.model.init, "random");
  EXPECT_EQ(recipe.model.shape.num_key_value_heads, 4);
  EXPECT_EQ(recipe.model.shape.head_dim, 16);
  EXPECT_FALSE(recipe.model.shape.qkv_bias);
  EXPECT_TRUE(recipe.parallel.mesh.empty());
  EXPECT_EQ(recipe.parallel.order, (std::vector<std::string>{"pp", "dp", "cp", "tp"}));
  EXPECT_EQ(recipe.parallel.fsdp.mode, "auto");
  EXPECT_EQ(recipe.train.micro_batch, 1);
  EXPECT_EQ(recipe.train.clip_norm, 1.0);
  EXPECT_EQ(recipe.train.activation_checkpointing.mode, "none");
  EXPECT_FALSE(recipe.data.ignore_id.has_value());
  EXPECT_FALSE(recipe.data.documents.has_value());
  EXPECT_TRUE(recipe.data.boundaries_count);
  EXPECT_EQ(recipe.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(recipe.schedule.name, Schedule::Constant);
}

TEST(LoadRecipe, UserBuffersWereOnceTrueOrFalse) {
  const RecipeFolder folder;
  const std::vector<std::pair<std::string, std::string>> words = {{"true", "registered"},
                                                                  {"false", "off"},
                                                                  {"off", "off"},
                                                                  {"registered", "registered"},
                                                                  {"symmetric", "symmetric"}};
  for (const auto& [word, meaning] : words) {
    const fs::path file = folder.write("recipe.yaml", kSmallRecipe);
    const Recipe recipe = load_recipe(file, {"parallel.nccl_user_buffers=" + word}, "");
    EXPECT_EQ(recipe.parallel.nccl_user_buffers, meaning) << word;
  }
}

TEST(LoadRecipe, ReadsEveryKey) {
  const RecipeFolder folder;
  const fs::path file = folder.write("whole.yaml", R"(
name: my run
model: {family: llama, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 8, vocab_size: 300, max_position_embeddings: 512, rope_theta: 5.0e+5,
        rope_scaling: {rope_type: llama3, factor: 32, low_freq_factor: 1, high_freq_factor: 4,
                       original_max_position_embeddings: 128},
        rms_norm_eps: 1e-5, initializer_range: 0.01, tie_word_embeddings: true, attention_bias: true, mlp_bias: True}
parallel: {mesh: {dp: 2, cp: auto}, order: [dp, tp, cp], fsdp: {mode: no_shard, unit: sublayer,
           offload: {to: disk, path: shards, parameters: false}},
           sequence_parallel: off, nccl_user_buffers: true,
           context: {algorithm: all_gather, layout: zigzag}, backend: mpi}
data: {tokens: a/b.bin, dtype: uint32, layout: stream, ignore_id: 7, loss_mask: /m.bin, shuffle: true,
       documents: 9, boundary_labels: ignored}
train: {sequence_length: 32, global_batch: 8, micro_batch: 2, steps: +10, precision: bf16, clip_norm: 0, seed: 5,
        stochastic_rounding: true, non_finite: skip, max_skipped: 3,
        activation_checkpointing: {mode: full, every: 2}, offload_activations: true, cuda_graph: true,
        cuda_allocator: "max_split_size_mb:64",
        log_every: 3, time_limit: 60.5, export: ../out/}
optimizer: {name: sgd, learning_rate: .5, betas: [0.8, 0.95], eps: 1.0e-7, weight_decay: 0.1, momentum: 0.9,
            decay: matrices}
schedule: {name: wsd, warmup_steps: 2, decay_steps: 4, min_ratio: 0.1}
device: cpu
)");
  const Recipe recipe = load_recipe(file, {}, "");
  EXPECT_EQ(recipe.name, "my run");
  const ModelShape& shape = recipe.model.shape;
  EXPECT_EQ(shape.head_dim, 8);
  EXPECT_EQ(shape.max_position_embeddings, 512);
  EXPECT_EQ(shape.rope_theta, 5e5);
  ASSERT_TRUE(shape.rope_scaling.has_value());
  EXPECT_EQ(shape.rope_scaling->factor, 32);
  EXPECT_EQ(shape.rope_scaling->original_max_position_embeddings, 128);
  EXPECT_TRUE(shape.qkv_bias && shape.output_bias && shape.mlp_bias && shape.tie_word_embeddings);
  EXPECT_EQ(recipe.parallel.mesh, (std::map<std::string, int64_t>{{"dp", 2}, {"cp", MeshLayout::kAuto}}));
  EXPECT_EQ(recipe.parallel.order.back(), "cp");
  EXPECT_EQ(recipe.parallel.sequence_parallel, "off");
  EXPECT_EQ(recipe.parallel.nccl_user_buffers, "registered");
  EXPECT_EQ(recipe.parallel.context.layout, "zigzag");
  EXPECT_EQ(recipe.parallel.fsdp.unit, "sublayer");
  EXPECT_EQ(recipe.parallel.fsdp.offload.to, "disk");
  EXPECT_EQ(recipe.parallel.fsdp.offload.path, folder.path() / "shards");
  EXPECT_FALSE(recipe.parallel.fsdp.offload.parameters);
  EXPECT_EQ(recipe.data.tokens, folder.path() / "a/b.bin");
  EXPECT_EQ(recipe.data.loss_mask, "/m.bin");
  EXPECT_EQ(recipe.data.ignore_id, 7);
  EXPECT_EQ(recipe.data.documents, 9);
  EXPECT_FALSE(recipe.data.boundaries_count);
  EXPECT_EQ(recipe.train.steps, 10);
  EXPECT_EQ(recipe.train.activation_checkpointing.mode, "full");
  EXPECT_EQ(recipe.train.activation_checkpointing.every, 2);
  EXPECT_TRUE(recipe.train.offload_activations);
  EXPECT_TRUE(recipe.train.cuda_graph);
  EXPECT_EQ(recipe.train.cuda_allocator, "max_split_size_mb:64");
  EXPECT_TRUE(recipe.train.stochastic_rounding);
  EXPECT_EQ(recipe.train.non_finite, "skip");
  EXPECT_EQ(recipe.train.max_skipped, 3);
  EXPECT_EQ(recipe.train.time_limit, 60.5);
  EXPECT_EQ(recipe.train.export_folder, folder.path().parent_path() / "out");
  EXPECT_EQ(recipe.optimizer.learning_rate, 0.5);
  EXPECT_EQ(recipe.optimizer.betas[1], 0.95);
  EXPECT_EQ(recipe.schedule.decay_steps, 4);

  const std::string yaml = to_yaml(recipe);
  EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml);
  EXPECT_EQ(to_yaml(load_recipe(folder.write("elsewhere/recipe.yaml", yaml), {}, "")), yaml);
}

/// Returns kSmallRecipe with other data.
std::string with_data(const std::string& text) {
  std::string recipe = kSmallRecipe;
  const std::string line = "  tokens: tokens.bin\n";
  return recipe.replace(recipe.find(line), line.size(), text);
}

TEST(LoadRecipe, SourcesAreAsDataSaysUnlessTheySayOtherwise) {
  const RecipeFolder folder;
  const std::string text = with_data(R"(  dtype: uint32
  shuffle: true
  documents: 5
  ignore_id: 6
  mixture:
    - {tokens: a.bin, weight: 0.7}
    - {tokens: b.bin, weight: 3, dtype: megatron, documents: index, shuffle: false, loss_mask: b.mask}
evaluate: {every: 10, tokens: held_out.bin, samples: 40, ignore_id: 7}
)");
  const Recipe recipe = load_recipe(folder.write("recipe.yaml", text), {}, "");
  ASSERT_EQ(recipe.data.mixture.size(), 2u);
  const MixedSource &a = recipe.data.mixture[0], &b = recipe.data.mixture[1];
  EXPECT_EQ(a.tokens, folder.path() / "a.bin");
  EXPECT_EQ(a.weight, 0.7);
  EXPECT_EQ(a.dtype, "uint32");
  EXPECT_EQ(a.layout, SampleLayout::Records);
  EXPECT_EQ(a.documents, 5);
  EXPECT_TRUE(a.shuffle && !b.shuffle);
  EXPECT_EQ(b.dtype, "megatron");
  EXPECT_EQ(b.layout, SampleLayout::Stream);
  EXPECT_EQ(b.documents, kDocumentsOfIndex);
  EXPECT_EQ(b.loss_mask, folder.path() / "b.mask");
  EXPECT_EQ(b.ignore_id, 6);
  EXPECT_EQ(recipe.data.sources().size(), 2u);
  EXPECT_EQ(recipe.evaluate.every, 10);
  EXPECT_EQ(recipe.evaluate.tokens, folder.path() / "held_out.bin");
  EXPECT_EQ(recipe.evaluate.samples, 40);
  EXPECT_EQ(recipe.evaluate.dtype, "uint32");
  EXPECT_EQ(recipe.evaluate.documents, 5);
  EXPECT_EQ(recipe.evaluate.ignore_id, 7);
  EXPECT_FALSE(recipe.evaluate.shuffle) << "the order of training alone";

  const std::string yaml = to_yaml(recipe);
  EXPECT_NE(yaml.find("documents: index\n"), std::string::npos) << yaml;
  EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml);
  EXPECT_EQ(to_yaml(load_recipe(folder.write("elsewhere/recipe.yaml", yaml), {}, "")), yaml);
}

TEST(LoadRecipe, FilesOfMegatronAreStreamsUnlessTheySayOtherwise) {
  const RecipeFolder folder;
  const auto layout = [&](const std::string& more) {
    const std::string text = with_data("  tokens: a.bin\n  dtype: megatron\n" + more);
    return load_recipe(folder.write("recipe.yaml", text), {}, "").data.layout;
  };
  EXPECT_EQ(layout(""), SampleLayout::Stream);
  EXPECT_EQ(layout("  layout: records\n"), SampleLayout::Records);
}

TEST(LoadRecipe, ReadsEveryLossScale) {
  const RecipeFolder folder;
  const fs::path file = folder.write("recipe.yaml", kSmallRecipe);
  EXPECT_FALSE(load_recipe(file, {}, "").train.loss_scale);
  const auto loaded = [&](const std::string& scale) {
    const Recipe recipe = load_recipe(file, {"train.precision=fp16_mixed", "train.loss_scale=" + scale}, "");
    EXPECT_EQ(to_yaml(parse_recipe(to_yaml(recipe))), to_yaml(recipe));
    return *recipe.train.loss_scale;
  };
  const LossScaleOptions standard = loaded("null");
  EXPECT_FALSE(standard.fixed);
  EXPECT_EQ(standard.initial, 65536);
  EXPECT_EQ(standard.growth_interval, 2000);
  EXPECT_EQ(standard.growth_factor, 2);
  EXPECT_EQ(standard.backoff_factor, 0.5);
  EXPECT_EQ(standard.min, 1);
  EXPECT_EQ(loaded("{static: 128}").fixed, 128);
  const LossScaleOptions other =
      loaded("{initial: 16, growth_interval: 5, growth_factor: 4, backoff_factor: 0.25, min: 2}");
  EXPECT_EQ(other.initial, 16);
  EXPECT_EQ(other.growth_interval, 5);
  EXPECT_EQ(other.growth_factor, 4);
  EXPECT_EQ(other.backoff_factor, 0.25);
  EXPECT_EQ(other.min, 2);
}

TEST(LoadRecipe, ReadsEveryRotaryScaling) {
  const RecipeFolder folder;
  const fs::path file = folder.write("small.yaml", kSmallRecipe);
  const auto load = [&](const std::string& scaling, const std::string& more = "model.max_position_embeddings=256") {
    const Recipe recipe = load_recipe(file, {"model.rope_scaling=" + scaling, more}, "");
    const std::string yaml = to_yaml(recipe);
    EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml) << scaling;
    return std::pair(recipe.model.shape.rope_scaling, yaml.substr(yaml.find("  rope_scaling:")));
  };
  EXPECT_FALSE(load("{rope_type: default}").first);
  EXPECT_EQ(load("{rope_type: default}").second.find("  rope_scaling: null\n"), 0u);

  const auto [linear, linear_text] = load("{rope_type: linear, factor: 2.5}");
  EXPECT_EQ(linear.value().factor, 2.5);
  EXPECT_EQ(linear_text.find("  rope_scaling:\n    rope_type: linear\n    factor: 2.5\n  rms_norm_eps"), 0u);

  const auto [llama3, llama3_text] = load(
      "{rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 3, "
      "original_max_position_embeddings: 128}");
  EXPECT_EQ(llama3.value().high_freq_factor, 3);
  EXPECT_EQ(llama3_text.find("beta_fast"), std::string::npos);

  const RopeScaling least = load("{rope_type: yarn, factor: 4}").first.value();
  EXPECT_EQ(least.original_max_position_embeddings, 0);
  EXPECT_EQ(least.beta_fast, 32);
  EXPECT_EQ(least.beta_slow, 1);
  EXPECT_FALSE(least.attention_factor || least.mscale || least.mscale_all_dim);
  EXPECT_TRUE(least.truncate);

  const auto [most, most_text] = load(
      "{rope_type: yarn, factor: 4, original_max_position_embeddings: 64, beta_fast: 16, beta_slow: 0.5, "
      "mscale: 0.7, mscale_all_dim: 1.2, truncate: false}");
  EXPECT_EQ(most->original_max_position_embeddings, 64);
  EXPECT_EQ(most->beta_fast, 16);
  EXPECT_EQ(most->beta_slow, 0.5);
  EXPECT_EQ(most->mscale, 0.7);
  EXPECT_EQ(most->mscale_all_dim, 1.2);
  EXPECT_FALSE(most->truncate);
  EXPECT_EQ(most_text.find("low_freq_factor"), std::string::npos);
  EXPECT_EQ(load("{rope_type: yarn, factor: 4, attention_factor: 1.5}").first->attention_factor, 1.5);
}

TEST(LoadRecipe, RotaryScalingOfAFolderMayBeRepeated) {
  const RecipeFolder folder;
  folder.write("m/config.json",
               R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
                   "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 64,
                   "rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.5, "mscale": 2}})");
  const std::string rest = kSmallRecipe.substr(kSmallRecipe.find("data:"));
  const fs::path file = folder.write("hf.yaml", "model: {hf: m, init: random}\n" + rest);
  const std::string yaml = to_yaml(load_recipe(file, {}, ""));
  EXPECT_EQ(to_yaml(load_recipe(folder.write("again.yaml", yaml), {}, "")), yaml);
  const std::string other = "model.rope_scaling.attention_factor=1.25";
  EXPECT_EQ(input_error([&] { load_recipe(folder.path() / "again.yaml", {other}, ""); }),
            "--set " + other + ": 1.25 differs from the 1.5 of " + (folder.path() / "m/config.json").string() +
                "; leave it out, or set model.hf to null");
}

TEST(LoadRecipe, FamilyBringsItsBiasesAndNorms) {
  const RecipeFolder folder;
  const fs::path file = folder.write("small.yaml", kSmallRecipe);
  const ModelShape qwen2 = load_recipe(file, {"model.family=qwen2"}, "").model.shape;
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  const ModelShape qwen3 = load_recipe(file, {"model.family=qwen3"}, "").model.shape;
  EXPECT_EQ(qwen3.head_dim, 128) << "as without the key in config.json";
  EXPECT_EQ(load_recipe(file, {"model.family=qwen3", "model.head_dim=8"}, "").model.shape.head_dim, 8);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.output_bias);
}

// Keys of a family are read, written, and read again; absent ones have transformers' values.
TEST(LoadRecipe, ReadsWhatFamiliesChoose) {
  const RecipeFolder folder;
  const fs::path file = folder.write("small.yaml", kSmallRecipe);
  const auto load = [&](std::vector<std::string> settings) {
    const Recipe recipe = load_recipe(file, settings, "");
    const std::string yaml = to_yaml(recipe);
    EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml);
    return recipe.model.shape;
  };
  const ModelShape granite = load({"model.family=granite", "model.embedding_multiplier=12", "model.logits_scaling=8",
                                   "model.attention_multiplier=0.25", "model.residual_multiplier=0.22"});
  EXPECT_EQ(granite.embedding_multiplier, 12);
  EXPECT_EQ(granite.residual_multiplier, 0.22);
  EXPECT_EQ(granite.logits_scaling, 8);
  EXPECT_EQ(attention_scale(granite), 0.25);

  const ModelShape smollm3 = load({"model.family=smollm3", "model.no_rope_layers=[1, 0]"});
  EXPECT_TRUE(is_rotary(smollm3, 0) && !is_rotary(smollm3, 1));
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_EQ(smollm3.rope_theta, 2e6);

  const ModelShape gemma3 =
      load({"model.family=gemma3_text", "model.sliding_window=7", "model.query_pre_attn_scalar=64",
            "model.layer_types=[sliding_attention, full_attention]", "model.rope_local_base_freq=500"});
  EXPECT_EQ(window_of(gemma3, 0), 7);
  EXPECT_EQ(window_of(gemma3, 1), 0);
  EXPECT_TRUE(is_locally_rotary(gemma3, 0) && !is_locally_rotary(gemma3, 1));
  EXPECT_EQ(attention_scale(gemma3), 0.125);

  const ModelShape gemma2 = load({"model.family=gemma2", "model.attn_logit_softcapping=20"});
  EXPECT_EQ(gemma2.attn_logit_softcapping, 20);
  EXPECT_EQ(gemma2.final_logit_softcapping, 30);

  const ModelShape phi3 =
      load({"model.family=phi3", "model.partial_rotary_factor=0.5", "model.max_position_embeddings=128",
            "model.rope_scaling={rope_type: longrope, original_max_position_embeddings: 64, "
            "short_factor: [1, 1.5, 2, 2.5], long_factor: [1, 2, 3, 4]}"});
  EXPECT_EQ(phi3.rope_scaling->long_factor, (std::vector<double>{1, 2, 3, 4}));
}

TEST(LoadRecipe, ThePaddingTokenIsThatOfTheFolder) {
  const RecipeFolder folder;
  const auto write_config = [&](const std::string& padding) {
    folder.write("m/config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
                 "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 256)" +
                                      padding + "}");
  };
  write_config(R"(, "pad_token_id": 7)");
  const fs::path file = folder.write("recipe.yaml", kSmallRecipe);
  const std::vector<std::string> changes = {"model=null", "model.hf=" + (file.parent_path() / "m").string(),
                                            "model.init=random", "model.freeze_padding_row=true"};
  const Recipe recipe = load_recipe(file, changes, "");
  EXPECT_EQ(recipe.model.shape.pad_token_id, 7);
  EXPECT_TRUE(recipe.model.freeze_padding_row);
  EXPECT_EQ(parse_recipe(to_yaml(recipe)).model.shape.pad_token_id, 7);
  write_config("");
  EXPECT_TRUE(has(message<InputError>([&] { load_recipe(file, changes, ""); }),
                  "true needs a token whose row it is: config.json in "));
}

TEST(LoadRecipe, ReadsTheShapeOfAHuggingFaceFolder) {
  const RecipeFolder folder;
  folder.write("models/m/config.json",
               R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "rope_theta": 77.0})");
  const std::string rest = kSmallRecipe.substr(kSmallRecipe.find("data:"));
  const fs::path file = folder.write("r/hf.yaml", "model: {hf: ../models/m}\n" + rest);

  const Recipe random = load_recipe(file, {"model.init=random"}, "");
  EXPECT_EQ(random.model.hf, folder.path() / "models/m");
  EXPECT_EQ(random.model.shape.num_hidden_layers, 3);
  EXPECT_EQ(random.model.shape.rope_theta, 77);
  const std::string yaml = to_yaml(random);
  EXPECT_EQ(to_yaml(load_recipe(folder.write("again.yaml", yaml), {}, "")), yaml);

  EXPECT_EQ(input_error([&] { load_recipe(file, {}, ""); }),
            file.string() + ":1:13: model.hf: there is no model.safetensors, nor its index, in " +
                random.model.hf.string() +
                ": fetch them (python3 tools/fetch_3d_data.py --model m for those of recipes/hf_3d), or set model.init "
                "to random");
  EXPECT_EQ(input_error([&] {
              load_recipe(file, {"model.init=random", "model.hidden_size=32"}, "");
            }),
            "--set model.hidden_size=32: 32 differs from the 64 of " + (random.model.hf / "config.json").string() +
                "; leave it out, or set model.hf to null");
  folder.write("models/m/model.safetensors", "");
  EXPECT_EQ(load_recipe(file, {}, "").model.init, "pretrained");
  // Ranks that do not read the file do not need the folder either.
  fs::remove_all(folder.path() / "models");
  EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml);
}

TEST(LoadRecipe, LayersMergeMapsAndReplaceTheRest) {
  const RecipeFolder folder;
  folder.write("base/base.yaml", kSmallRecipe + "name: base\nparallel: {mesh: {dp: 4, tp: 2}, order: [tp, dp, cp]}\n");
  folder.write("middle.yaml", "extends: base/base.yaml\ntrain: {steps: 20, seed: 3}\ndata: {ignore_id: 1}\n");
  const fs::path file = folder.write("top.yaml",
                                     "extends: middle.yaml\ntrain: {seed: 4}\ndata: {ignore_id: null}\n"
                                     "parallel: {mesh: {dp: null, cp: 8}, order: [cp, dp, tp]}\n");
  const Recipe recipe = load_recipe(file, {}, "");
  EXPECT_EQ(recipe.name, "top");
  EXPECT_EQ(recipe.train.steps, 20);
  EXPECT_EQ(recipe.train.seed, 4);
  EXPECT_EQ(recipe.train.global_batch, 8);
  EXPECT_FALSE(recipe.data.ignore_id.has_value());
  EXPECT_EQ(recipe.data.tokens, folder.path() / "base/tokens.bin") << "relative to the file that says it";
  EXPECT_EQ(recipe.parallel.mesh, (std::map<std::string, int64_t>{{"cp", 8}, {"tp", 2}}));
  EXPECT_EQ(recipe.parallel.order, (std::vector<std::string>{"pp", "cp", "dp", "tp"}));
}

TEST(LoadRecipe, TheBatchIsANumberOrAListOfSizes) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  const auto load = [&](const std::string& batch) { return load_recipe(file, {"train.global_batch=" + batch}, ""); };
  const Recipe growing = load("[{until: 64, size: 2}, {until: 1000, size: 4}, {size: 16}]");
  EXPECT_EQ(growing.train.phases, (std::vector<BatchPhase>{{64, 2}, {1000, 4}, {{}, 16}}));
  EXPECT_EQ(growing.train.global_batch, 16);
  const Recipe again = parse_recipe(to_yaml(growing));
  EXPECT_EQ(again.train.phases, growing.train.phases);
  EXPECT_EQ(again.train.global_batch, 16);
  EXPECT_TRUE(load("4").train.phases.empty());
  const auto refused = [&](const std::string& batch) { return input_error([&] { load(batch); }); };
  const std::string set = "--set train.global_batch=";
  EXPECT_EQ(refused("[]"), set + "[]: is an empty list: give a number, or maps in it");
  for (const auto& [batch, problem] : std::vector<std::pair<std::string, std::string>>{
           {"[{size: 2}, {size: 4}]",
            "train.global_batch[0].until: must be given: the tokens up to which the batch has this size"},
           {"[{until: 9, size: 2}, {until: 9, size: 3}, {size: 4}]",
            "train.global_batch[1].until: 9 is not above the 9 of the entry before it"},
           {"[{until: 9, size: 2}]",
            "train.global_batch[0].until: must be left out in the last entry, whose size is for all further tokens"},
           {"[{until: 9}, {size: 2}]", "train.global_batch[0].size: must be given"}}) {
    EXPECT_EQ(refused(batch), set + batch + ": " + problem);
  }
}

TEST(LoadRecipe, OutliersHaveDefaultsAndAShorthand) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  EXPECT_FALSE(load_recipe(file, {}, "").train.skip_outliers);
  const auto load = [&](const std::string& outliers) {
    const OutlierOptions found = *load_recipe(file, {"train.skip_outliers=" + outliers}, "").train.skip_outliers;
    return std::pair(found.window, found.sigma);
  };
  EXPECT_EQ(load("{}"), std::pair(int64_t{128}, 6.0));
  EXPECT_EQ(load("4.5"), std::pair(int64_t{128}, 4.5));
  EXPECT_EQ(load("{window: 32}"), std::pair(int64_t{32}, 6.0));
}

TEST(LoadRecipe, AxesThatTheOrderLeavesOutAreTheOutermost) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe + "parallel: {mesh: {dp: 2, cp: 2}, order: [dp, tp]}\n");
  EXPECT_EQ(load_recipe(file, {}, "").parallel.order, (std::vector<std::string>{"pp", "cp", "dp", "tp"}));
}

TEST(LoadRecipe, OverridesWinAndMeshReplaces) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe + "parallel: {mesh: {dp: 4, tp: 2}}\n");
  const Recipe recipe =
      load_recipe(file,
                  {"train.steps=20", "train.steps=30", "data.tokens=x.bin", "parallel={fsdp: {mode: no_shard}}",
                   "parallel.mesh.cp=2", "parallel.mesh.dp=1", "optimizer.betas=[0.5, 0.6]", "train.export="},
                  "cp=2,tp=auto");
  EXPECT_EQ(recipe.train.steps, 30);
  EXPECT_EQ(recipe.data.tokens, fs::current_path() / "x.bin");
  EXPECT_EQ(recipe.parallel.fsdp.mode, "no_shard");
  EXPECT_EQ(recipe.optimizer.betas[0], 0.5);
  EXPECT_EQ(recipe.parallel.mesh, (std::map<std::string, int64_t>{{"cp", 2}, {"tp", MeshLayout::kAuto}}));
}

TEST(LoadRecipe, SetAndMeshMayNotGiveAnAxisTwoSizes) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe + "parallel: {mesh: {dp: 4, tp: 2}}\n");
  const auto refusal = [&](const std::string& set, const std::string& mesh) {
    return input_error([&] { load_recipe(file, {set}, mesh); });
  };
  EXPECT_EQ(refusal("parallel.mesh.pp=2", "dp=4"),
            "--set parallel.mesh.pp=2: --mesh dp=4 replaces parallel.mesh and makes pp 1: leave one of the two out");
  EXPECT_EQ(
      refusal("parallel.mesh={pp: 2, dp: auto}", "pp=4,dp=auto"),
      "--set parallel.mesh={pp: 2, dp: auto}: --mesh pp=4,dp=auto replaces parallel.mesh and makes pp 4: leave one "
      "of the two out");
  EXPECT_TRUE(sets_mesh("parallel.mesh.pp=2"));
  EXPECT_TRUE(sets_mesh("parallel.mesh={dp: 2}"));
  EXPECT_TRUE(sets_mesh("parallel={mesh: {dp: 2}}"));
  EXPECT_FALSE(sets_mesh("parallel.order=[dp, tp]"));
}

TEST(LoadRecipe, AliasesStandForWhatTheyName) {
  const RecipeFolder folder;
  const fs::path file =
      folder.write("r.yaml", kSmallRecipe +
                                 "parallel: {context: &none {}, fsdp: *none}\nschedule: {min_ratio: &a 0.5}\n"
                                 "device: cpu\n");
  EXPECT_EQ(load_recipe(file, {}, "").schedule.min_ratio, 0.5);
}

TEST(LoadRecipe, DoublesSurviveToTheLastBit) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  for (const char* rate : {"0.1", "1e-300", "0.30000000000000004", "123456789.123456789", "5e-324"}) {
    const Recipe recipe = load_recipe(file, {std::string("optimizer.learning_rate=") + rate}, "");
    EXPECT_EQ(recipe.optimizer.learning_rate, std::strtod(rate, nullptr));
    EXPECT_EQ(parse_recipe(to_yaml(recipe)).optimizer.learning_rate, recipe.optimizer.learning_rate);
  }
}

TEST(LoadRecipe, OddPathsSurvive) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  for (const char* name : {"/a b", "/#x", "/null", "/a: b", "/\"q\"", "/\\n", "/é", "/[1]", "/it's"}) {
    Recipe recipe = load_recipe(file, {}, "");
    recipe.data.tokens = name;
    EXPECT_EQ(parse_recipe(to_yaml(recipe)).data.tokens, name);
  }
}

TEST(LoadRecipe, EveryCommittedRecipeIsRight) {
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testing::source_folder() + "/recipes")) {
    const bool is_base = entry.path().filename().string().starts_with("base");  // incomplete: others extend it
    if (entry.path().extension() != ".yaml" || is_base) continue;
    const Recipe recipe = load_recipe(entry.path(), {"model.init=random"}, "");
    const std::string yaml = to_yaml(recipe);
    EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml) << entry.path();
    ++found;
  }
  EXPECT_GE(found, 120);
}

}  // namespace
}  // namespace meshtrain::testing
