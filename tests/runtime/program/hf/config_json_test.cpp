#include "runtime/program/hf/config_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "mesh/base/error.h"
#include "runtime/training/model/families.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::damaged;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;

// The config.json in the folders published for these models.
const char* const kSmolLm2 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "pad_token_id": 2, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 130000,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers.js_config": {"dtype": "q4"},
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})";
const char* const kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
  "vocab_size": 128256})";
const char* const kMistral = R"({
  "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0", "use_cache": true,
  "vocab_size": 32768})";
const char* const kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})";
const char* const kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";
// The same, as transformers 5 writes it.
const char* const kVersion5 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "dtype": "float32",
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 40960,
  "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 2,
  "num_key_value_heads": 8, "pad_token_id": null, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000,
  "rope_type": "default"}, "sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.0.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

class ConfigJson : public ::testing::Test {
 protected:
  ModelShape read(const std::string& text) const {
    write_file(file_, text);
    return read_config_json(file_);
  }
  /// Reads `base` with the keys of `changes` (null removes one).
  ModelShape read(const char* base, const json& changes) const {
    json config = json::parse(base);
    config.merge_patch(changes);
    return read(config.dump());
  }
  std::string refusal(const char* base, const json& changes) const {
    const std::string text = message<InputError>([&] { read(base, changes); });
    EXPECT_TRUE(text.empty() || has(text, file_.string() + ": ")) << text;
    return text;
  }
  std::string refusal(const std::string& text) const {
    return message<InputError>([&] { read(text); });
  }

  ScratchFolder folder_;
  std::filesystem::path file_ = folder_.path() / "config.json";
};

TEST_F(ConfigJson, ReadsSmolLm2) {
  const ModelShape shape = read(kSmolLm2);
  EXPECT_EQ(shape.family, "llama");
  EXPECT_EQ(shape.hidden_size, 2048);
  EXPECT_EQ(shape.intermediate_size, 8192);
  EXPECT_EQ(shape.num_hidden_layers, 24);
  EXPECT_EQ(shape.num_attention_heads, 32);
  EXPECT_EQ(shape.num_key_value_heads, 32);
  EXPECT_EQ(shape.head_dim, 64);
  EXPECT_EQ(shape.vocab_size, 49152);
  EXPECT_EQ(shape.max_position_embeddings, 8192);
  EXPECT_EQ(shape.rope_theta, 130000);
  EXPECT_FALSE(shape.rope_scaling);
  EXPECT_EQ(shape.rms_norm_eps, 1e-5);
  EXPECT_TRUE(shape.tie_word_embeddings);
  EXPECT_FALSE(shape.qkv_bias || shape.output_bias || shape.mlp_bias);
}

TEST_F(ConfigJson, ReadsLlama3Scaling) {
  const ModelShape shape = read(kLlama32);
  EXPECT_EQ(shape.num_key_value_heads, 8);
  ASSERT_TRUE(shape.rope_scaling);
  EXPECT_EQ(shape.rope_scaling->type, "llama3");
  EXPECT_EQ(shape.rope_scaling->factor, 32);
  EXPECT_EQ(shape.rope_scaling->low_freq_factor, 1);
  EXPECT_EQ(shape.rope_scaling->high_freq_factor, 4);
  EXPECT_EQ(shape.rope_scaling->original_max_position_embeddings, 8192);
}

// The settings that the pages of these models recommend to extend their context.
const json kLinear = {{"rope_type", "linear"}, {"factor", 2.5}};
const json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};

TEST_F(ConfigJson, ReadsLinearScaling) {
  for (const char* name : {"type", "rope_type"}) {
    const ModelShape shape = read(kSmolLm2, {{"rope_scaling", {{name, "linear"}, {"factor", 2.5}}}});
    ASSERT_TRUE(shape.rope_scaling);
    EXPECT_EQ(shape.rope_scaling->type, "linear");
    EXPECT_EQ(shape.rope_scaling->factor, 2.5);
    EXPECT_EQ(shape.rope_theta, 130000);
  }
}

TEST_F(ConfigJson, ReadsYarnScaling) {
  const RopeScaling least = read(kQwen2, {{"rope_scaling", {{"type", "yarn"}, {"factor", 2}}}}).rope_scaling.value();
  EXPECT_EQ(least.type, "yarn");
  EXPECT_EQ(least.factor, 2);
  EXPECT_EQ(least.original_max_position_embeddings, 0) << "max_position_embeddings";
  EXPECT_EQ(least.beta_fast, 32);
  EXPECT_EQ(least.beta_slow, 1);
  EXPECT_FALSE(least.attention_factor || least.mscale || least.mscale_all_dim);
  EXPECT_TRUE(least.truncate);

  json keys = kYarn;
  keys.update({{"beta_fast", 16}, {"beta_slow", 0.5}, {"mscale", 0.7}, {"mscale_all_dim", 1.2}, {"truncate", false}});
  const RopeScaling most = read(kQwen2, {{"rope_scaling", keys}}).rope_scaling.value();
  EXPECT_EQ(most.original_max_position_embeddings, 32768);
  EXPECT_EQ(most.beta_fast, 16);
  EXPECT_EQ(most.beta_slow, 0.5);
  EXPECT_EQ(most.mscale, 0.7);
  EXPECT_EQ(most.mscale_all_dim, 1.2);
  EXPECT_FALSE(most.truncate);
}

TEST_F(ConfigJson, IgnoresOfAScalingWhatTransformersIgnores) {
  json keys = kYarn;
  keys.update({{"attention_factor", 1.5}, {"mscale", 0.7}, {"mscale_all_dim", 1.2}});
  const RopeScaling given = read(kQwen2, {{"rope_scaling", keys}}).rope_scaling.value();
  EXPECT_EQ(given.attention_factor, 1.5);
  EXPECT_FALSE(given.mscale || given.mscale_all_dim);
  for (const char* alone : {"mscale", "mscale_all_dim"}) {
    keys = kYarn;
    keys[alone] = 0.7;
    const RopeScaling scaling = read(kQwen2, {{"rope_scaling", keys}}).rope_scaling.value();
    EXPECT_FALSE(scaling.mscale || scaling.mscale_all_dim);
  }
  keys = kLinear;
  keys.update({{"low_freq_factor", 9.0}, {"attention_factor", 1.5}, {"original_max_position_embeddings", 64}});
  const ModelShape linear = read(kSmolLm2, {{"rope_scaling", keys}});
  EXPECT_EQ(write_config_json(linear, "float32"),
            write_config_json(read(kSmolLm2, {{"rope_scaling", kLinear}}), "float32"));
  EXPECT_FALSE(read(kSmolLm2, {{"rope_scaling", {{"rope_type", "default"}, {"factor", 3.0}}}}).rope_scaling);

  json config = json::parse(kQwen2);
  config["rope_scaling"] = kYarn;
  config["rope_scaling"]["truncate"] = nullptr;
  EXPECT_FALSE(read(config.dump()).rope_scaling->truncate) << "a null is false to transformers, where absent is true";
}

TEST_F(ConfigJson, KnowsTheFamilies) {
  const ModelShape mistral = read(kMistral);
  EXPECT_EQ(mistral.family, "mistral");
  EXPECT_FALSE(mistral.qkv_bias || mistral.output_bias);
  const ModelShape qwen2 = read(kQwen2);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_EQ(qwen2.head_dim, 64);
  const ModelShape qwen3 = read(kQwen3);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.output_bias);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(read(kQwen3, {{"head_dim", nullptr}}).head_dim, 128);
  EXPECT_TRUE(has(refusal(kSmolLm2, {{"model_type", "gemma"}}), "\"gemma\", not one of llama, mistral, qwen2, qwen3"));
  EXPECT_TRUE(has(refusal(kSmolLm2, {{"model_type", nullptr}}), "model_type is missing"));
}

TEST_F(ConfigJson, ReadsTransformers5) {
  const ModelShape shape = read(kVersion5);
  EXPECT_EQ(shape.rope_theta, 1e6);
  EXPECT_TRUE(shape.qkv_bias && shape.output_bias);
  json scaling = json::parse(kLlama32)["rope_scaling"];
  scaling["rope_theta"] = 250000;
  const ModelShape llama =
      read(kLlama32, {{"rope_scaling", nullptr}, {"rope_theta", nullptr}, {"rope_parameters", scaling}});
  ASSERT_TRUE(llama.rope_scaling);
  EXPECT_EQ(llama.rope_scaling->factor, 32);
  EXPECT_EQ(llama.rope_theta, 250000);
  for (json parameters : {kLinear, kYarn}) {
    parameters["rope_theta"] = 77;
    const ModelShape scaled = read(kVersion5, {{"rope_parameters", parameters}});
    ASSERT_TRUE(scaled.rope_scaling);
    EXPECT_EQ(scaled.rope_scaling->type, parameters["rope_type"]);
    EXPECT_EQ(scaled.rope_scaling->factor, parameters["factor"]);
    EXPECT_EQ(scaled.rope_theta, 77);
  }
}

TEST_F(ConfigJson, LeftOutValuesAreTransformersDefaults) {
  const ModelShape shape =
      read(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
               "num_attention_heads": 4, "vocab_size": 100})");
  EXPECT_EQ(shape.num_key_value_heads, 4);
  EXPECT_EQ(shape.head_dim, 16);
  EXPECT_EQ(shape.rope_theta, 10000);
  EXPECT_EQ(shape.rms_norm_eps, 1e-6);
  EXPECT_EQ(shape.initializer_range, 0.02);
  EXPECT_EQ(shape.max_position_embeddings, 0);
  EXPECT_FALSE(shape.tie_word_embeddings);
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    EXPECT_TRUE(has(refusal(kSmolLm2, {{key, nullptr}}), std::string(key) + " is missing"));
  }
  EXPECT_TRUE(has(refusal(kQwen2, {{"num_key_value_heads", nullptr}}), "num_key_value_heads is missing"));
}

TEST_F(ConfigJson, ThePaddingTokenIsOneOfTheVocabulary) {
  EXPECT_EQ(read(kSmolLm2).pad_token_id, 2);
  EXPECT_EQ(read(kSmolLm2, {{"pad_token_id", nullptr}}).pad_token_id, std::nullopt);
  EXPECT_EQ(read(kSmolLm2, {{"pad_token_id", -1}}).pad_token_id, 49151) << "as in torch.nn.Embedding";
  EXPECT_EQ(read(kSmolLm2, {{"pad_token_id", 49152}}).pad_token_id, std::nullopt);
  EXPECT_TRUE(has(refusal(kSmolLm2, {{"pad_token_id", "x"}}), "pad_token_id is \"x\""));
  const json gemma = {{"model_type", "gemma2"}, {"hidden_activation", "gelu_pytorch_tanh"}, {"hidden_act", nullptr}};
  json absent = json::parse(kSmolLm2);
  absent.merge_patch(gemma);
  absent.erase("pad_token_id");
  EXPECT_EQ(read(absent.dump()).pad_token_id, 0) << "the family's";
  absent["pad_token_id"] = nullptr;
  const ModelShape without = read(absent.dump());
  EXPECT_EQ(without.pad_token_id, std::nullopt);
  EXPECT_TRUE(json::parse(write_config_json(without, "float32")).at("pad_token_id").is_null());
  const ModelShape shape = read(kSmolLm2);
  EXPECT_EQ(json::parse(write_config_json(shape, "float32")).at("pad_token_id"), 2);
  EXPECT_EQ(json::parse(write_config_json(shape, "float32", R"({"pad_token_id": -49150})")).at("pad_token_id"), -49150);
}

TEST_F(ConfigJson, BiasesFollowTheirKeys) {
  const ModelShape shape = read(kSmolLm2, {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(shape.qkv_bias && shape.output_bias && shape.mlp_bias);
  EXPECT_TRUE(has(refusal(kMistral, {{"attention_bias", true}}), "attention_bias is true"));
  EXPECT_TRUE(has(refusal(kQwen3, {{"mlp_bias", true}}), "mlp_bias is true"));
}

using Types = std::vector<std::string>;

Types types_of(const ModelShape& shape) {
  Types types;
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    types.push_back(window_of(shape, layer) > 0 ? "sliding_attention" : "full_attention");
  }
  return types;
}

// transformers' classes decide which layers slide: all of Mistral and Phi 3, of Qwen those from max_window_layers on if
// use_sliding_window is true, of Gemma all but every second or sixth.
TEST_F(ConfigJson, ReadsSlidingWindows) {
  const auto changed = [&](const char* base, const json& changes) {
    json config = json::parse(base);
    config.update(changes);
    return read(config.dump());
  };
  EXPECT_EQ(read(kMistral).sliding_window, 0);
  EXPECT_EQ(changed(kMistral, {{"sliding_window", 4096}}).sliding_window, 4096);
  EXPECT_EQ(window_of(changed(kMistral, {{"sliding_window", 4096}}), 31), 4096);
  json silent = json::parse(kMistral);
  silent.erase("sliding_window");
  EXPECT_EQ(read(silent.dump()).sliding_window, 4096) << "of transformers' MistralConfig";

  EXPECT_EQ(read(kQwen2).sliding_window, 0) << "use_sliding_window is false";
  const json slides = {{"use_sliding_window", true}, {"num_hidden_layers", 3}, {"sliding_window", 7}};
  json some = slides, none = slides;
  some["max_window_layers"] = 1;
  none["max_window_layers"] = 3;
  EXPECT_EQ(types_of(changed(kQwen2, some)), (Types{"full_attention", "sliding_attention", "sliding_attention"}));
  EXPECT_EQ(window_of(changed(kQwen2, some), 1), 7);
  EXPECT_EQ(changed(kQwen2, none).sliding_window, 0) << "no layer uses it";
  some["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(types_of(changed(kQwen2, some)), (Types{"sliding_attention", "full_attention", "full_attention"}));

  EXPECT_TRUE(has(refusal(kSmolLm2, {{"sliding_window", 128}}), "sliding_window (128) is not known"));
  EXPECT_TRUE(has(refusal(kVersion5, {{"layer_types", {"full_attention", "sliding_attention"}}}),
                  "layer_types has sliding_attention, but there is no sliding_window (use_sliding_window is false)"));
  EXPECT_TRUE(has(refusal(kVersion5, {{"layer_types", {"full_attention"}}}), "layer_types has 1 entry for 2 layers"));
  EXPECT_TRUE(has(refusal(kVersion5, {{"layer_types", {"full_attention", "chunked_attention"}}}),
                  "layer_types has \"chunked_attention\": full_attention and sliding_attention are available"));
  json mixed = {{"num_hidden_layers", 2}, {"sliding_window", 7}};
  mixed["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_TRUE(has(refusal(kMistral, mixed), "in a mistral with a sliding_window all layers slide"));
}

TEST_F(ConfigJson, RefusesOtherArithmeticByName) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"hidden_act", "gelu"}}, "hidden_act is \"gelu\": a llama has silu"},
      {{{"attention_dropout", 0.1}}, "attention_dropout is 0.1"},
      {{{"activation", "gelu"}}, "activation is \"gelu\""},
      {{{"rope_interleaved", true}}, "rope_interleaved is true"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is not 1: a llama rotates complete heads"},
      {{{"use_mrope", true}}, "use_mrope is true"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config is {\"bits\":4}"},
      {{{"num_experts", 8}}, "num_experts (8) is not known"},
      {{{"logit_scale", 0.5}}, "logit_scale (0.5) is not known"},
      {{{"auto_map", {{"AutoModel", "x.y"}}}}, "auto_map"},
  };
  for (const auto& [changes, expected] : cases) {
    EXPECT_TRUE(has(refusal(kSmolLm2, changes), expected)) << refusal(kSmolLm2, changes);
  }
  EXPECT_EQ(refusal(kSmolLm2, {{"hidden_act", "swish"}}), "");
}

// Keys that other programs read, and one that changes rounding alone.
TEST_F(ConfigJson, TakesWhatTransformersDoesNotCompute) {
  EXPECT_EQ(refusal(kSmolLm2, {{"pretraining_tp", 4}}), "");
  EXPECT_EQ(refusal(kSmolLm2, {{"activation", "swiglu"}}), "") << "Falcon 3";
  EXPECT_EQ(refusal(kQwen2, {{"dual_chunk_attention_config", {{"chunk_size", 262144}}}}), "") << "Qwen2.5-1M";
  EXPECT_EQ(refusal(kSmolLm2, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}), "")
      << "unscaled within the trained length";
}

TEST_F(ConfigJson, RefusesOtherRotaryScalings) {
  for (const char* type : {"longrope", "su", "proportional", "mrope", "Yarn", ""}) {
    for (const char* key : {"type", "rope_type"}) {
      const json scaling = {{key, type}, {"factor", 2.0}};
      EXPECT_TRUE(has(refusal(kSmolLm2, {{"rope_scaling", scaling}}),
                      "rope_scaling.rope_type is \"" + std::string(type) + "\", which is not available for a llama"));
    }
  }
  const auto scaled = [&](const json& changes) { return refusal(kLlama32, {{"rope_scaling", changes}}); };
  EXPECT_EQ(scaled({{"type", "llama3"}}), "") << "transformers 4 writes both names";
  EXPECT_TRUE(has(scaled({{"type", "linear"}}), "rope_scaling.type and rope_type differ"));
  EXPECT_TRUE(has(scaled({{"factor", nullptr}}), "rope_scaling.factor is missing"));
  EXPECT_TRUE(
      has(scaled({{"original_max_position_embeddings", nullptr}}), "original_max_position_embeddings is missing"));
  EXPECT_TRUE(has(scaled({{"high_freq_factor", 1.0}}), "high_freq_factor is 1: it must be above low_freq_factor 1"));
  EXPECT_TRUE(has(scaled({{"long_wavelength", 1.0}}), "rope_scaling.long_wavelength (1.0) is not known"));
  EXPECT_TRUE(has(scaled({{"partial_rotary_factor", 0.5}}), "partial_rotary_factor is not 1"));
  EXPECT_TRUE(has(scaled({{"rope_theta", 7}}), "rope_scaling.rope_theta differs"));
  EXPECT_TRUE(has(refusal(kLlama32, {{"rope_parameters", {{"rope_type", "default"}}}}), "both given and differ"));
  EXPECT_TRUE(has(refusal(kSmolLm2, {{"rope_scaling", 3}}), "rope_scaling is 3, not a JSON object"));
}

TEST_F(ConfigJson, RefusesImpossibleRotaryScalings) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"factor", nullptr}}, "rope_scaling.factor is missing"},
      {{{"factor", "4"}}, "rope_scaling.factor is \"4\", not a number above zero"},
      {{{"factor", 0.5}}, "rope_scaling.factor is 0.5: it must be at least 1"},
      {{{"original_max_position_embeddings", 0}}, "rope_scaling.original_max_position_embeddings is 0, not a whole"},
      {{{"original_max_position_embeddings", 1.5}}, "rope_scaling.original_max_position_embeddings is 1.5"},
      {{{"beta_fast", 1}}, "rope_scaling.beta_fast is 1: it must be above beta_slow 1"},
      {{{"beta_slow", 40}}, "rope_scaling.beta_fast is 32: it must be above beta_slow 40"},
      {{{"beta_slow", -1}}, "rope_scaling.beta_slow is -1, not a number above zero"},
      {{{"attention_factor", 0}}, "rope_scaling.attention_factor is 0, not a number above zero"},
      {{{"mscale", -1}, {"mscale_all_dim", 1}}, "rope_scaling.mscale is -1, not a number above zero"},
      {{{"truncate", 1}}, "rope_scaling.truncate is 1, not true or false"},
      {{{"rope_theta", 5}}, "rope_scaling.rope_theta differs"},
  };
  for (const auto& [changes, expected] : cases) {
    json keys = kYarn;
    keys.merge_patch(changes);
    EXPECT_TRUE(has(refusal(kQwen2, {{"rope_scaling", keys}}), expected)) << expected;
  }
  EXPECT_TRUE(has(refusal(kQwen2, {{"rope_scaling", kYarn}, {"rope_theta", 1}}), "needs a rope_theta above 1, not 1"));
  const json least = {{"rope_type", "yarn"}, {"factor", 2}};
  EXPECT_TRUE(has(refusal(kQwen2, {{"rope_scaling", least}, {"max_position_embeddings", nullptr}}),
                  "rope_scaling.original_max_position_embeddings is missing, and so is max_position_embeddings"));
  EXPECT_TRUE(has(refusal(kSmolLm2, {{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}), "factor is 0.5"));
  EXPECT_TRUE(has(refusal(kLlama32, {{"rope_scaling", {{"factor", 0.5}}}}), "factor is 0.5"));
  EXPECT_TRUE(
      has(refusal(kSmolLm2, {{"rope_parameters", {{"rope_type", "yarn"}}}}), "rope_parameters.factor is missing"));
}

TEST_F(ConfigJson, RefusesImpossibleValues) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"hidden_size", 0}}, "hidden_size is 0, not a whole number of at least 1"},
      {{{"hidden_size", -64}}, "hidden_size is -64"},
      {{{"hidden_size", 2.5}}, "hidden_size is 2.5"},
      {{{"hidden_size", "2048"}}, "hidden_size is \"2048\""},
      {{{"hidden_size", 1ull << 40}}, "hidden_size is 1099511627776"},
      {{{"hidden_size", 2050}}, "hidden_size is 2050, which num_attention_heads 32 does not divide"},
      {{{"num_key_value_heads", 5}}, "num_key_value_heads is 5, which does not divide num_attention_heads 32"},
      {{{"head_dim", 63}}, "head_dim is 63"},
      {{{"rope_theta", 0}}, "rope_theta is 0, not a number above zero"},
      {{{"rms_norm_eps", "small"}}, "rms_norm_eps is \"small\""},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings is 1, not true or false"},
      {{{"layer_types", 1}}, "layer_types is 1, not a list"},
  };
  for (const auto& [changes, expected] : cases) {
    EXPECT_TRUE(has(refusal(kSmolLm2, changes), expected)) << refusal(kSmolLm2, changes);
  }
  EXPECT_TRUE(has(refusal("{\"a\": "), "not valid JSON"));
  EXPECT_TRUE(has(refusal(""), "not valid JSON"));
  EXPECT_TRUE(has(refusal("[1, 2]"), "not a JSON object"));
  std::filesystem::remove(file_);
  EXPECT_TRUE(has(message<InputError>([&] { read_config_json(file_); }), "No such file"));
}

TEST_F(ConfigJson, WritesWhatItReads) {
  for (const char* text : {kSmolLm2, kLlama32, kMistral, kQwen2, kQwen3, kVersion5}) {
    const ModelShape shape = read(text);
    const std::string written = write_config_json(shape, "bfloat16");
    EXPECT_EQ(write_config_json(read(written), "bfloat16"), written);
    const json before = json::parse(text), after = json::parse(written);
    for (const auto& [key, value] : after.items()) {
      if (key == "rope_theta" || key == "torch_dtype" || !before.contains(key)) continue;
      EXPECT_EQ(value, before[key]) << key;
    }
    EXPECT_EQ(after["rope_theta"], shape.rope_theta);
  }
}

// Keys that transformers reads in one family and ignores in another, as tried with its 5.23.
TEST_F(ConfigJson, TakesKeysOfGemmaAsTransformersDoes) {
  const auto fixture = [](const char* name) {
    json config = json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/" + name + "/config.json"));
    config.erase("layer_types");
    config.erase("_sliding_window_pattern");
    return config;
  };
  json second = fixture("gemma2"), third = fixture("gemma3");
  const auto types = [&](json& config, int64_t layers, int64_t pattern) {
    config["num_hidden_layers"] = layers;
    config["sliding_window_pattern"] = pattern;
    return read(config.dump()).layer_types;
  };
  const std::string full = "full_attention", slides = "sliding_attention";
  EXPECT_EQ(types(second, 4, 4), (std::vector<std::string>{slides, full, slides, full})) << "Gemma 2 ignores it";
  EXPECT_EQ(types(third, 4, 4), (std::vector<std::string>{slides, slides, slides, full}));
  third.erase("rope_scaling");
  third.erase("rope_theta");
  third.erase("rope_local_base_freq");
  third["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 500000.0}};
  EXPECT_TRUE(has(refusal(third.dump()), "rope_parameters has neither full_attention nor sliding_attention"));
}

// Keys of public folders (Phi-4-mini, Gemma 2 9B) that transformers does not read.
TEST_F(ConfigJson, TakesKeysOfPublicFolders) {
  json config = json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/phi3/config.json"));
  config.update({{"full_attn_mod", 1}, {"interpolate_factor", 1}, {"lm_head_bias", false}});
  EXPECT_EQ(read(config.dump()).family, "phi3");
  config["lm_head_bias"] = true;
  EXPECT_TRUE(has(refusal(config.dump()), "lm_head_bias is true: the head has no bias"));
  json gemma = json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/gemma2/config.json"));
  gemma["sliding_window_size"] = 4096;
  EXPECT_EQ(read(gemma.dump()).family, "gemma2");
}

// transformers takes max / original positions for an absent factor alone.
TEST_F(ConfigJson, LongropesFactorOfOneIsNoAbsentOne) {
  json config = json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/phi3_long/config.json"));
  const char* const key = config["rope_parameters"].is_object() ? "rope_parameters" : "rope_scaling";
  config[key].erase("factor");
  config[key].erase("attention_factor");
  EXPECT_EQ(read(config.dump()).rope_scaling->attention_factor, std::nullopt);
  for (const double factor : {1.0, 0.5}) {
    config[key]["factor"] = factor;
    const ModelShape shape = read(config.dump());
    EXPECT_EQ(shape.rope_scaling->attention_factor, 1) << factor;
    const ModelShape again = read(write_config_json(shape, "float32"));
    EXPECT_EQ(again.rope_scaling->attention_factor, 1) << factor;
  }
}

// The fixtures' config.json, which transformers wrote: the same model comes back.
TEST_F(ConfigJson, WritesWhatItReadsOfEveryFamily) {
  for (const char* name : {"smollm3", "granite", "phi3", "phi3_long", "olmo2", "olmo3", "gemma2", "gemma3",
                           "mistral_window", "qwen2_window"}) {
    const std::string file = testing::source_folder() + "/tests/fixtures/" + name + "/config.json";
    const ModelShape shape = read_config_json(file);
    const std::string written = write_config_json(shape, "float32");
    EXPECT_EQ(write_config_json(read(written), "float32"), written) << name;
    const json before = json::parse(std::ifstream(file)), after = json::parse(written);
    for (const auto& [key, value] : after.items()) {
      EXPECT_TRUE(!before.contains(key) || value == before[key]) << name << " " << key;
    }
    std::vector<std::string> stated = {"sliding_window",      "no_rope_layers",         "logits_scaling",
                                       "residual_multiplier", "attn_logit_softcapping", "query_pre_attn_scalar"};
    if (shape.sliding_window > 0 && name != std::string("phi3_long") && name != std::string("mistral_window")) {
      stated.push_back("layer_types");
    }
    for (const std::string& key : stated) {
      EXPECT_TRUE(!before.contains(key) || before[key].is_null() || after.contains(key)) << name << " " << key;
    }
  }
}

TEST_F(ConfigJson, WritesWhatItReadsOfExperts) {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared",
                           "mixtral_balanced", "dots1", "glm4_moe", "gpt_oss"}) {
    const std::string file = testing::source_folder() + "/tests/fixtures/" + name + "/config.json";
    const ModelShape shape = read_config_json(file);
    const std::string written = write_config_json(shape, "float32");
    EXPECT_EQ(write_config_json(read(written), "float32"), written) << name;
    EXPECT_TRUE(read(written).experts == shape.experts) << name;
    const json before = json::parse(std::ifstream(file)), after = json::parse(written);
    for (const auto& [key, value] : after.items()) {
      EXPECT_TRUE(!before.contains(key) || before[key].is_null() || value == before[key]) << name << " " << key;
    }
    for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
                            "shared_intermediate_size", "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
                            "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "n_group", "topk_group",
                            "routed_scaling_factor", "use_qk_norm", "swiglu_alpha", "swiglu_limit"}) {
      EXPECT_EQ(after.contains(key), before.contains(key)) << name << " " << key;
    }
  }
}

TEST_F(ConfigJson, ReadsTheExpertsOfDeepSeeksRouter) {
  const auto fixture = [](const char* name) {
    return json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/" + name + "/config.json"));
  };
  json config = fixture("dots1");
  const ModelShape shape = read(config.dump());
  EXPECT_EQ(shape.experts.shared_expert_intermediate_size, 24) << "two of 12 features";
  EXPECT_EQ(shape.experts.mlp_only_layers, std::vector<int64_t>{0});
  EXPECT_EQ(shape.experts.n_group, 4);
  EXPECT_EQ(shape.experts.topk_group, 2);
  EXPECT_EQ(shape.experts.routed_scaling_factor, 2.5);
  EXPECT_EQ(window_of(shape, 1), 0) << "layers from max_window_layers on slide";
  EXPECT_EQ(window_of(shape, 2), 5);
  config["output_router_logits"] = true;
  EXPECT_EQ(read(config.dump()).experts.router_aux_loss_coef, 0) << "transformers has no balancing loss for it";
  for (const auto& [key, value, problem] :
       {std::tuple("n_group", json(3), "does not divide 8 experts"), std::tuple("n_group", json(8), "two or more"),
        std::tuple("topk_group", json(5), "is more than n_group 4"),
        std::tuple("topk_group", json(1), "leaves fewer than num_experts_per_tok 3"),
        std::tuple("first_k_dense_replace", json(3), "leaves no layer with experts"),
        std::tuple("scoring_func", json("softmax"), "a dots1 has sigmoid")}) {
    json changed = fixture("dots1");
    changed[key] = value;
    EXPECT_TRUE(has(refusal(changed.dump()), problem)) << key;
  }
  json glm = fixture("glm4_moe");
  glm["rope_parameters"].erase("partial_rotary_factor");
  const ModelShape shape_of_glm = read(glm.dump());
  EXPECT_EQ(shape_of_glm.partial_rotary_factor, 0.5) << "of an absent key";
  EXPECT_TRUE(shape_of_glm.qkv_bias && !shape_of_glm.output_bias);
  EXPECT_EQ(query_key_norm(shape_of_glm), QueryKeyNorm::EachHead);
  glm["use_qk_norm"] = false;
  EXPECT_EQ(query_key_norm(read(glm.dump())), QueryKeyNorm::None);
  ModelShape other = shape;
  other.experts.mlp_only_layers = {1};
  EXPECT_THROW(write_config_json(other, "float32"), InputError);
  other = shape;
  other.experts.shared_expert_intermediate_size = 13;
  EXPECT_THROW(write_config_json(other, "float32"), InputError);
}

TEST_F(ConfigJson, ReadsGptOss) {
  json config = json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/gpt_oss/config.json"));
  const ModelShape shape = read(config.dump());
  EXPECT_TRUE(shape.qkv_bias && shape.output_bias);
  EXPECT_EQ(shape.experts.swiglu_alpha, 1.3);
  EXPECT_EQ(shape.experts.swiglu_limit, 0.8);
  EXPECT_FALSE(shape.rope_scaling->truncate);
  // Keys of the published folders that concern other programs, and the values of absent ones.
  config.update({{"experts_per_token", 4}, {"initial_context_length", 4096}, {"num_hidden_layers", 3}});
  for (const char* key : {"attention_bias", "swiglu_alpha", "swiglu_limit", "rope_parameters", "layer_types",
                          "sliding_window", "head_dim", "rms_norm_eps", "tie_word_embeddings"}) {
    config.erase(key);
  }
  const ModelShape absent = read(config.dump());
  EXPECT_TRUE(absent.qkv_bias && absent.output_bias);
  EXPECT_EQ(absent.experts.swiglu_alpha, 1.702);
  EXPECT_EQ(absent.experts.swiglu_limit, 7);
  EXPECT_EQ(absent.rope_theta, 150000);
  EXPECT_EQ(absent.rope_scaling->type, "yarn");
  EXPECT_EQ(absent.rope_scaling->factor, 32);
  EXPECT_EQ(absent.rope_scaling->original_max_position_embeddings, 4096);
  EXPECT_FALSE(absent.rope_scaling->truncate);
  for (int64_t layer = 0; layer < 3; ++layer) EXPECT_EQ(window_of(absent, layer), layer == 1 ? 0 : 128) << layer;
  EXPECT_EQ(absent.head_dim, 64);
  EXPECT_EQ(absent.rms_norm_eps, 1e-5);
  EXPECT_FALSE(absent.tie_word_embeddings);
  ModelShape unscaled = shape;
  unscaled.rope_scaling.reset();
  EXPECT_FALSE(read(write_config_json(unscaled, "float32")).rope_scaling) << "without the key it would be scaled";
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  const std::string message = refusal(config.dump());
  EXPECT_TRUE(has(message, "quantization_config has quant_method mxfp4: ")) << message;
  EXPECT_TRUE(has(message, "Mxfp4Config(dequantize=True)")) << message;
}

TEST_F(ConfigJson, ReadsWhichLayersHaveExperts) {
  const auto fixture = [](const char* name) {
    return json::parse(std::ifstream(testing::source_folder() + "/tests/fixtures/" + name + "/config.json"));
  };
  json config = fixture("qwen3_moe");
  EXPECT_EQ(read(config.dump()).experts.num_experts, 8) << "transformers 5 writes num_local_experts";
  config["num_experts"] = 8;
  config["num_hidden_layers"] = 6;
  config["mlp_only_layers"] = {3};
  config["decoder_sparse_step"] = 2;
  const ModelShape shape = read(config.dump());
  EXPECT_EQ(shape.experts.mlp_only_layers, (std::vector<int64_t>{0, 2, 3, 4}));
  EXPECT_TRUE(has_experts(shape, 1) && !has_experts(shape, 3) && has_experts(shape, 5));
  config["num_experts"] = 6;
  EXPECT_TRUE(has(refusal(config.dump()), "num_local_experts and num_experts differ"));
  config["num_experts"] = 8;
  config["decoder_sparse_step"] = 7;
  EXPECT_TRUE(has(refusal(config.dump()), "mlp_only_layers and decoder_sparse_step leave no layer with experts"));

  json mixtral = fixture("mixtral");
  EXPECT_TRUE(read(mixtral.dump()).experts.norm_topk_prob);
  mixtral["num_experts_per_tok"] = 5;
  EXPECT_TRUE(has(refusal(mixtral.dump()), "num_experts_per_tok is 5, more than the 4 experts of num_local_experts"));
  for (const auto& [name, key, value] :
       {std::tuple("mixtral", "router_jitter_noise", json(0.1)), std::tuple("olmoe", "clip_qkv", json(8.0)),
        std::tuple("qwen2_moe", "qkv_bias", json(false)),
        std::tuple("qwen3_moe", "shared_expert_intermediate_size", json(4)),
        std::tuple("granitemoe", "shared_intermediate_size", json(4)),
        std::tuple("granitemoeshared", "attention_multiplier", json(0))}) {
    json changed = fixture(name);
    changed[key] = value;
    EXPECT_TRUE(has(refusal(changed.dump()), key)) << name;
  }
  const ModelShape slides = [&] {
    json qwen2 = fixture("qwen2_moe");
    qwen2.erase("layer_types");
    qwen2.update({{"num_hidden_layers", 5}, {"use_sliding_window", true}, {"sliding_window", 7}});
    qwen2["max_window_layers"] = 3;
    return read(qwen2.dump());
  }();
  for (int64_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(window_of(slides, layer), layer == 0 || layer == 2 ? 7 : 0) << layer;
  }
}

TEST_F(ConfigJson, WritesEveryRotaryScaling) {
  json truncated = kYarn, factored = kYarn, scaled = kYarn, unsaid = kYarn;
  truncated.update({{"truncate", false}, {"beta_fast", 20.0}});
  factored["attention_factor"] = 1.25;
  scaled.update({{"mscale", 0.7}, {"mscale_all_dim", 1.2}});
  unsaid.erase("original_max_position_embeddings");
  for (const json& scaling :
       {kLinear, json::parse(kLlama32)["rope_scaling"], kYarn, truncated, factored, scaled, unsaid}) {
    const std::string written = write_config_json(read(kQwen2, {{"rope_scaling", scaling}}), "float32");
    EXPECT_EQ(write_config_json(read(written), "float32"), written);
    json expected = scaling;
    if (scaling["rope_type"] == "yarn") {
      for (const auto& [key, value] : {std::pair("beta_fast", 32.0), std::pair("beta_slow", 1.0)}) {
        if (!expected.contains(key)) expected[key] = value;
      }
    }
    EXPECT_EQ(json::parse(written)["rope_scaling"], expected);
  }
}

TEST_F(ConfigJson, RefusesToWriteAShapeThatTheFamilyCannotHave) {
  const auto refused = [&](const char* base, bool ModelShape::*flag) {
    ModelShape shape = read(base);
    shape.*flag = !(shape.*flag);
    return !message<InputError>([&] { write_config_json(shape, "float32"); }).empty();
  };
  for (const char* base : {kSmolLm2, kMistral, kQwen2, kQwen3}) {
    EXPECT_TRUE(refused(base, &ModelShape::qkv_bias));
    EXPECT_TRUE(refused(base, &ModelShape::output_bias));
    EXPECT_EQ(refused(base, &ModelShape::mlp_bias), base != kSmolLm2);
  }
  ModelShape shape;
  shape.family = "gemma";
  EXPECT_THROW(write_config_json(shape, "float32"), InputError);
}

TEST_F(ConfigJson, DamageIsRefusedOrReadButNeverWorse) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 3000; ++i) {
    try {
      read(damaged(i % 2 == 0 ? kLlama32 : kVersion5, random));
    } catch (const InputError&) {
    }
  }
}

}  // namespace
}  // namespace meshtrain
