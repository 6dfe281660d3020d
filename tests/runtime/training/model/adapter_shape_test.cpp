#include "runtime/training/model/adapter_shape.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mesh/device/aten.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain::testing {
namespace {

AdapterShape adapter(std::vector<std::string> targets) {
  return {.rank = 4, .alpha = 6, .targets = std::move(targets)};
}

std::vector<std::string> layers_with_adapters(const AdapterShape& adapter) {
  ModelShape shape;
  shape.hidden_size = 16;
  shape.intermediate_size = 24;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = shape.num_key_value_heads = 2;
  shape.head_dim = 8;
  shape.vocab_size = 32;
  shape.adapter = adapter;
  std::vector<std::string> layers;
  for (const TensorEntry& tensor : declared_adapters(shape, at::kFloat)) {
    constexpr std::string_view kFactor = ".lora_A.weight", kPrefix = "model.layers.";
    if (tensor.name.ends_with(kFactor)) {
      layers.push_back(tensor.name.substr(kPrefix.size(), tensor.name.size() - kPrefix.size() - kFactor.size()));
    }
  }
  return layers;
}

using Names = std::vector<std::string>;

TEST(AdapterShapeTest, TargetsAreNamesOfLayersOrPatterns) {
  EXPECT_EQ(layers_with_adapters({}), Names());
  EXPECT_EQ(layers_with_adapters(adapter({"q_proj", "up_proj"})),
            (Names{"0.self_attn.q_proj", "0.mlp.up_proj", "1.self_attn.q_proj", "1.mlp.up_proj"}));
  EXPECT_EQ(layers_with_adapters(adapter({"*.1.self_attn.[kv]_proj"})),
            (Names{"1.self_attn.k_proj", "1.self_attn.v_proj"}));
  EXPECT_EQ(layers_with_adapters(adapter({"all-linear"})).size(), 14U);
  EXPECT_EQ(layers_with_adapters(adapter({"proj"})), Names()) << "a part of a name is no name";
  AdapterShape second = adapter({"o_proj"});
  second.layers = {1};
  EXPECT_EQ(layers_with_adapters(second), Names{"1.self_attn.o_proj"});
}

TEST(AdapterShapeTest, OptionsFollowFromTheShape) {
  AdapterShape shape = adapter({"q_proj", "k_proj", "o_proj"});
  shape.dropout = 0.1;
  shape.seed = 3;
  const std::string block = "model.layers.0.self_attn";
  const auto of = [&](const std::string& layer, const std::string& input) {
    return adapter_of(shape, block + layer, block + input, 16).value();
  };
  EXPECT_EQ(of(".q_proj", "").rank, 4);
  EXPECT_EQ(of(".q_proj", "").scale, 1.5);
  EXPECT_EQ(of(".q_proj", "").dropout.probability, 0.1);
  EXPECT_EQ(of(".q_proj", "").dropout.key, of(".k_proj", "").dropout.key) << "one input, one choice";
  EXPECT_NE(of(".q_proj", "").dropout.key, of(".o_proj", ".o_proj").dropout.key);
  EXPECT_EQ(of(".q_proj", "").initializer.kind, Initializer::Kind::Uniform);
  EXPECT_EQ(of(".q_proj", "").initializer.bound, 0.25);
  EXPECT_EQ(of(".q_proj", "").initializer_of_b.kind, Initializer::Kind::Zeros);
  const uint64_t key = of(".q_proj", "").dropout.key;
  shape.seed = 4;
  EXPECT_NE(of(".q_proj", "").dropout.key, key);
  shape.use_rslora = true;
  shape.init = AdapterShape::Init::Gaussian;
  EXPECT_EQ(of(".q_proj", "").scale, 3);
  EXPECT_EQ(of(".q_proj", "").initializer.kind, Initializer::Kind::Normal);
  EXPECT_EQ(of(".q_proj", "").initializer.std, 0.25);
}

TEST(AdapterShapeTest, TrainsAdaptersAndWhatTrainNames) {
  AdapterShape shape = adapter({"q_proj"});
  shape.train = {"*norm*"};
  const std::string weight = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_FALSE(is_trained(shape, {}, weight));
  EXPECT_TRUE(is_trained({}, {}, weight));
  EXPECT_TRUE(is_trained(shape, {}, adapter_names(weight).a));
  EXPECT_TRUE(is_trained(shape, {}, adapter_names(weight).b));
  EXPECT_TRUE(is_trained(shape, {}, "model.norm.weight"));
  EXPECT_FALSE(is_trained(shape, {"*.lora_A.*"}, adapter_names(weight).a));
  EXPECT_FALSE(is_trained(shape, {"model.norm.*"}, "model.norm.weight"));
}

TEST(AdapterShapeTest, MergesInFp32) {
  const AdapterShape shape = adapter({"q_proj"});
  const at::Tensor weight = at::randn({24, 16}).to(at::kBFloat16), a = at::randn({4, 16}), b = at::randn({24, 4});
  const at::Tensor exact = weight.to(at::kDouble) + 1.5 * at::matmul(b.to(at::kDouble), a.to(at::kDouble));
  const at::Tensor seen = merged(shape, weight, a, b);
  EXPECT_EQ(seen.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(seen.to(at::kDouble), exact, 1e-5, 1e-5));
  EXPECT_EQ(merged(shape, weight.to(at::kDouble), a, b).scalar_type(), at::kDouble);
  EXPECT_EQ(adapter_names("model.layers.0.self_attn.q_proj.bias").a, "") << "nothing is merged into a bias";
}

}  // namespace
}  // namespace meshtrain::testing
