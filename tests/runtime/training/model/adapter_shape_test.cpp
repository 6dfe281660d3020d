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
    constexpr std::string_view kPrefix = "model.layers.";
    const std::string layer = tensor.name.substr(0, tensor.name.rfind(".lora_"));
    if (tensor.name != adapter_names(layer + ".weight").a) continue;
    layers.push_back(layer.starts_with(kPrefix) ? layer.substr(kPrefix.size()) : layer);
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
  EXPECT_EQ(layers_with_adapters(adapter({"all-linear"})).size(), 14U) << "as for PEFT without the head";
  EXPECT_EQ(layers_with_adapters(adapter({"embed_tokens", "lm_head"})), (Names{"model.embed_tokens", "lm_head"}));
  EXPECT_EQ(layers_with_adapters(adapter({"*.embed_tokens"})), Names{"model.embed_tokens"});
  EXPECT_EQ(layers_with_adapters(adapter({"proj"})), Names()) << "a part of a name is no name";
  AdapterShape second = adapter({"o_proj"});
  second.layers = {1};
  EXPECT_EQ(layers_with_adapters(second), Names{"1.self_attn.o_proj"});
  second.targets.emplace_back("lm_head");
  EXPECT_EQ(layers_with_adapters(second), Names{"1.self_attn.o_proj"}) << "the head is in none of the layers";
  EXPECT_FALSE(adapts_vocabulary(second));
  EXPECT_TRUE(adapts_vocabulary(adapter({"embed_tokens"})));
}

TEST(AdapterShapeTest, TheEmbeddingBeginsAsInPeft) {
  AdapterShape shape = adapter({"embed_tokens"});
  shape.dropout = 0.1;
  const AdapterOptions options = adapter_of(shape, kEmbeddingLayer, "", 32).value();
  EXPECT_EQ(options.initializer.kind, Initializer::Kind::Zeros);
  EXPECT_EQ(options.initializer_of_b.kind, Initializer::Kind::Normal);
  EXPECT_EQ(options.initializer_of_b.std, 1);
  EXPECT_EQ(options.dropout.probability, 0);
  shape.draws_all = true;
  EXPECT_NE(adapter_of(shape, kEmbeddingLayer, "", 32)->initializer.kind, Initializer::Kind::Zeros);
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
  const at::Tensor seen = merged(shape, "model.layers.0.self_attn.q_proj.weight", weight, a, b);
  EXPECT_EQ(seen.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(seen.to(at::kDouble), exact, 1e-5, 1e-5));
  EXPECT_EQ(merged(shape, "lm_head.weight", weight.to(at::kDouble), a, b).scalar_type(), at::kDouble);
  EXPECT_EQ(adapter_names("model.layers.0.self_attn.q_proj.bias").a, "") << "nothing is merged into a bias";
}

}  // namespace
}  // namespace meshtrain::testing
