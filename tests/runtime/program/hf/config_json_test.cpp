#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "mesh/base/error.h"
#include "runtime/training/model/families.h"
#include "tests/runtime/program/hf/public_configs.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::ConfigJson;
using testing::damaged;
using testing::has;
using testing::kLinear;
using testing::kLlama32;
using testing::kMistral;
using testing::kQwen2;
using testing::kQwen3;
using testing::kSmolLm2;
using testing::kVersion5;
using testing::kYarn;
using testing::message;

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
  const auto without_types = [](const char* name) {
    json config = fixture(name);
    config.erase("layer_types");
    config.erase("_sliding_window_pattern");
    return config;
  };
  json second = without_types("gemma2"), third = without_types("gemma3");
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
