// Frequencies as transformers computes them: tests/fixtures/rope_frequencies, written by tests/fixtures/generate.py.

#include "runtime/training/model/rope_scaling.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/training/model/operators/rope.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::ScratchFolder;
using testing::write_file;

std::filesystem::path fixture() {
  return testing::source_folder() + "/tests/fixtures/rope_frequencies";
}

/// Returns a small llama's config.json with the keys of one case.
ModelShape shape_of(const json& keys) {
  const ScratchFolder folder;
  json config = {{"model_type", "llama"},  {"hidden_size", 16},        {"intermediate_size", 24},
                 {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"vocab_size", 97}};
  config.update(keys);
  write_file(folder.path() / "config.json", config.dump());
  return read_config_json(folder.path() / "config.json");
}

double relative_difference(const at::Tensor& found, const at::Tensor& wanted) {
  return ((found - wanted) / wanted).abs().max().item<double>();
}

TEST(RopeScaling, FrequenciesAreThoseOfTransformers) {
  const json cases = json::parse(std::ifstream(fixture() / "cases.json"));
  const SafetensorsFile reference(fixture() / "reference.safetensors");
  ASSERT_GE(cases.size(), 19u);
  // The bits are equal when powers use the same instructions as those of the files did.
  const double tolerance = at::get_cpu_capability() == "AVX2" ? 0 : 1e-6;
  for (const auto& [name, keys] : cases.items()) {
    const ModelShape shape = shape_of(keys);
    const RopeFrequencies fp32 = rope_frequencies(shape, at::kFloat), fp64 = rope_frequencies(shape, at::kDouble);
    EXPECT_LE(relative_difference(fp32.inverse, reference.read(name + ".fp32")), tolerance) << name;
    EXPECT_EQ(fp64.inverse.scalar_type(), at::kDouble);
    EXPECT_LE(relative_difference(fp64.inverse, reference.read(name + ".fp64")), 1e-14) << name;
    const double factor = reference.read(name + ".attention_factor").item<double>();
    EXPECT_NEAR(fp64.attention_factor, factor, 1e-15) << name;
    EXPECT_EQ(fp32.attention_factor, fp64.attention_factor) << name;
  }
}

TEST(RopeScaling, TheSameThroughAConfigJson) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "config.json";
  const json cases = json::parse(std::ifstream(fixture() / "cases.json"));
  for (const auto& [name, keys] : cases.items()) {
    const ModelShape shape = shape_of(keys);
    write_file(file, write_config_json(shape, "float32"));
    const RopeFrequencies before = rope_frequencies(shape, at::kDouble);
    const RopeFrequencies after = rope_frequencies(read_config_json(file), at::kDouble);
    EXPECT_TRUE(at::equal(before.inverse, after.inverse)) << name;
    EXPECT_EQ(before.attention_factor, after.attention_factor) << name;
  }
}

/// Heads of 16 features whose frequency i turns 1024 / 4^i times over the original context.
class YarnRamp : public ::testing::Test {
 protected:
  YarnRamp() {
    shape_.head_dim = 16;
    shape_.rope_theta = 65536;
    shape_.max_position_embeddings = 99;
    yarn().type = "yarn";
    yarn().factor = 4;
    yarn().original_max_position_embeddings = 6433;  // 2 pi * 1023.8
  }
  RopeScaling& yarn() {
    if (!shape_.rope_scaling) shape_.rope_scaling.emplace();
    return *shape_.rope_scaling;
  }
  /// Returns the kept share of each unscaled frequency: 1 all of it, 0 a quarter (the factor).
  std::vector<double> kept() const {
    const at::Tensor frequencies = rope_frequencies(shape_, at::kDouble).inverse;
    std::vector<double> result;
    for (int64_t i = 0; i < 8; ++i) {
      const double plain = std::pow(4.0, -static_cast<double>(i));
      result.push_back((frequencies[i].item<double>() / plain - 0.25) / 0.75);
    }
    return result;
  }
  void expect_kept(const std::vector<double>& wanted) const {
    const std::vector<double> found = kept();
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-3) << "feature " << i;
  }
  double attention_factor() const { return rope_frequencies(shape_, at::kFloat).attention_factor; }

  ModelShape shape_;
};

TEST_F(YarnRamp, EndsAtWholeFeaturesUnlessSaidOtherwise) {
  // 32 turns are feature 2.5, one turn is just below feature 5.
  expect_kept({1, 1, 1, 2 / 3.0, 1 / 3.0, 0, 0, 0});
  yarn().truncate = false;
  expect_kept({1, 1, 1, 0.8, 0.4, 0, 0, 0});
}

TEST_F(YarnRamp, FollowsTheTurns) {
  yarn().beta_fast = 300;  // feature 0.89
  yarn().beta_slow = 0.9;  // feature 5.08
  expect_kept({1, 5 / 6.0, 4 / 6.0, 3 / 6.0, 2 / 6.0, 1 / 6.0, 0, 0});
  yarn().truncate = false;
  const double begin = std::log2(1024 / 300.0) / 2, end = std::log2(1024 / 0.9) / 2;
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(kept()[i], 1 - std::clamp((i - begin) / (end - begin), 0.0, 1.0), 1e-3) << i;
  }
}

TEST_F(YarnRamp, TakesMaxPositionEmbeddingsForTheOriginalLength) {
  shape_.max_position_embeddings = 6433;
  yarn().original_max_position_embeddings = 0;
  expect_kept({1, 1, 1, 2 / 3.0, 1 / 3.0, 0, 0, 0});
}

TEST_F(YarnRamp, AttentionFactorIsGivenOrComputed) {
  EXPECT_DOUBLE_EQ(attention_factor(), 0.1 * std::log(4.0) + 1);
  yarn().mscale = 0.5;
  yarn().mscale_all_dim = 2;
  EXPECT_DOUBLE_EQ(attention_factor(), (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1));
  yarn().factor = 1;
  EXPECT_EQ(attention_factor(), 1);
  yarn().mscale.reset();
  yarn().mscale_all_dim.reset();
  EXPECT_EQ(attention_factor(), 1);
  yarn().attention_factor = 1.5;
  EXPECT_EQ(attention_factor(), 1.5);
}

TEST_F(YarnRamp, AttentionFactorMultipliesCosAndSin) {
  const at::Tensor positions = at::arange(40, at::kLong);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    yarn().attention_factor = 1;
    const Rotary plain = make_rotary(shape_, positions, dtype == at::kDouble ? dtype : at::kFloat, at::kCPU);
    yarn().attention_factor = 1.3;
    const Rotary scaled = make_rotary(shape_, positions, dtype, at::kCPU);
    EXPECT_TRUE(at::equal(scaled.cos, (plain.cos * 1.3).to(dtype))) << dtype;
    EXPECT_TRUE(at::equal(scaled.sin, (plain.sin * 1.3).to(dtype))) << dtype;
  }
}

TEST_F(YarnRamp, RefusesWhatIsImpossible) {
  const auto refusal = [&](const std::function<void(ModelShape&)>& change) {
    ModelShape shape = shape_;
    change(shape);
    EXPECT_THROW(rope_frequencies(shape, at::kFloat), InputError);
    const auto mistake = rope_mistake(shape);
    return mistake ? mistake->key + " " + mistake->what : "";
  };
  EXPECT_FALSE(rope_mistake(shape_));
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_scaling->factor = 0.5; }),
            "factor is 0.5: it must be at least 1");
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_scaling->beta_slow = 32; }),
            "beta_fast is 32: it must be above beta_slow 32");
  EXPECT_EQ(refusal([](ModelShape& shape) {
              shape.rope_scaling->original_max_position_embeddings = shape.max_position_embeddings = 0;
            }),
            "original_max_position_embeddings is missing, and so is max_position_embeddings: yarn needs one of them");
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_theta = 1; }),
            "rope_type is yarn, which needs a rope_theta above 1, not 1");
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_scaling->mscale = 1; }),
            "mscale has no effect alone: give both mscale and mscale_all_dim, or neither");
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_scaling->mscale_all_dim = 1; }),
            "mscale_all_dim has no effect alone: give both mscale and mscale_all_dim, or neither");
  EXPECT_EQ(refusal([](ModelShape& shape) {
              shape.rope_scaling->mscale = shape.rope_scaling->mscale_all_dim = shape.rope_scaling->attention_factor =
                  2;
            }),
            "mscale has no effect together with attention_factor: give one of them");
}

class LongRope : public ::testing::Test {
 protected:
  LongRope() {
    shape_.family = "phi3";
    shape_.head_dim = 8;
    shape_.partial_rotary_factor = 0.75;
    shape_.max_position_embeddings = 64;
    RopeScaling& scaling = shape_.rope_scaling.emplace();
    scaling.type = "longrope";
    scaling.original_max_position_embeddings = 16;
    scaling.short_factor = {1, 2, 3};
    scaling.long_factor = {4, 5, 6};
  }
  std::string refusal(const std::function<void(ModelShape&)>& change) const {
    ModelShape shape = shape_;
    change(shape);
    const auto mistake = rope_mistake(shape);
    return mistake ? mistake->key + " " + mistake->what : "";
  }

  ModelShape shape_;
};

TEST_F(LongRope, DividesByTheFactorsOfTheLength) {
  for (const auto& [length, divisors] : {std::pair<int64_t, std::vector<double>>{16, {1, 2, 3}}, {17, {4, 5, 6}}}) {
    const RopeFrequencies of = rope_frequencies(shape_, at::kDouble, length);
    for (int64_t i = 0; i < 3; ++i) {
      const double plain = std::pow(10000.0, -static_cast<double>(i) / 3);
      EXPECT_NEAR(of.inverse[i].item<double>(), plain / divisors[static_cast<size_t>(i)], 1e-15) << length;
    }
    EXPECT_NEAR(of.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(16.0)), 1e-15);
  }
  shape_.rope_scaling->attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(shape_, at::kDouble).attention_factor, 1.25);
}

TEST_F(LongRope, RefusesWhatIsImpossible) {
  EXPECT_EQ(refusal([](ModelShape&) {}), "");
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_scaling->long_factor.pop_back(); }),
            "long_factor has 2 numbers: it must have 3, one for each pair of rotated features");
  EXPECT_EQ(refusal([](ModelShape& shape) { shape.rope_scaling->original_max_position_embeddings = 65; }),
            "original_max_position_embeddings is 65, above max_position_embeddings 64");
}

// Within the trained length nothing is scaled; beyond it each text would have frequencies of its own.
TEST(RopeScaling, DynamicIsPlainWithinTheTrainedLength) {
  ModelShape shape;
  shape.head_dim = 8;
  shape.max_position_embeddings = 32;
  const at::Tensor plain = rope_frequencies(shape, at::kFloat).inverse;
  shape.rope_scaling.emplace().type = "dynamic";
  shape.rope_scaling->factor = 4;
  EXPECT_TRUE(at::equal(rope_frequencies(shape, at::kFloat, 32).inverse, plain));
  EXPECT_THROW(rope_frequencies(shape, at::kFloat, 33), InputError);
}

TEST(RopeScaling, NumbersBeyondFp32DoNoHarm) {
  ModelShape shape;
  shape.head_dim = 8;
  shape.rope_theta = 1e300;
  shape.rope_scaling.emplace();
  for (const char* type : {"linear", "llama3", "yarn"}) {
    RopeScaling& scaling = *shape.rope_scaling;
    scaling.type = type;
    scaling.factor = 1e300;
    scaling.low_freq_factor = 1e-300;
    scaling.original_max_position_embeddings = 2147483647;
    scaling.beta_fast = 1e300;
    scaling.beta_slow = 1e-300;
    const at::Tensor frequencies = rope_frequencies(shape, at::kFloat).inverse;
    EXPECT_TRUE(frequencies.isfinite().all().item<bool>()) << type << frequencies;
  }
}

}  // namespace
}  // namespace meshtrain
