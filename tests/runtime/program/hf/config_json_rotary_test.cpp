// Scalings of rotary positions in config.json.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/runtime/program/hf/public_configs.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::ConfigJson;
using testing::has;
using testing::kLinear;
using testing::kLlama32;
using testing::kQwen2;
using testing::kSmolLm2;
using testing::kYarn;

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

// transformers takes max / original positions for an absent factor alone.
TEST_F(ConfigJson, LongropesFactorOfOneIsNoAbsentOne) {
  json config = fixture("phi3_long");
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
}  // namespace
}  // namespace meshtrain
