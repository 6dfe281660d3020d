// Model FLOPs are those of the published formula, and those that others have published for these models.

#include "runtime/training/model/flops.h"

#include <gtest/gtest.h>

#include <set>

namespace meshtrain {
namespace {

ModelShape llama(int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads, int64_t kv_heads, int64_t vocab,
                 bool tied = false) {
  ModelShape shape;
  shape.hidden_size = hidden;
  shape.intermediate_size = intermediate;
  shape.num_hidden_layers = layers;
  shape.num_attention_heads = heads;
  shape.num_key_value_heads = kv_heads;
  shape.head_dim = hidden / heads;
  shape.vocab_size = vocab;
  shape.tie_word_embeddings = tied;
  return shape;
}

double flops(const ModelShape& shape, int64_t length, const std::function<bool(const std::string&)>& frozen = {}) {
  Transformer model(shape, Parallelism{}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  for (Parameter* const parameter : model.parameters()) {
    parameter->tensor.requires_grad_(!frozen || !frozen(parameter->name));
  }
  return flops_per_token(model, shape, length);
}

/// Returns 6 (N - V h) + 6 L q s with N written out: a head counts, tied or not, and the lookup does not.
double formula(const ModelShape& shape, int64_t length) {
  const auto h = static_cast<double>(shape.hidden_size), f = static_cast<double>(shape.intermediate_size);
  const auto q = static_cast<double>(shape.num_attention_heads * shape.head_dim);
  const auto kv = static_cast<double>(shape.num_key_value_heads * shape.head_dim);
  const auto layers = static_cast<double>(shape.num_hidden_layers);
  const double layer = 2 * h * q + 2 * h * kv + 3 * h * f + 2 * h;
  return 6 * (layers * layer + h + static_cast<double>(shape.vocab_size) * h) +
         6 * layers * q * static_cast<double>(length);
}

TEST(Flops, AreThoseOfTheFormulaOnFiveShapes) {
  const std::vector<ModelShape> shapes = {llama(4096, 14336, 32, 32, 8, 128256), llama(8192, 28672, 80, 64, 8, 128256),
                                          llama(16384, 53248, 126, 128, 8, 128256),
                                          llama(2048, 8192, 24, 32, 32, 49152, /*tied=*/true),
                                          llama(256, 688, 4, 8, 4, 256, /*tied=*/true)};
  for (const ModelShape& shape : shapes) {
    for (const int64_t length : {256, 8192}) {
      EXPECT_DOUBLE_EQ(flops(shape, length), formula(shape, length)) << shape.hidden_size << " " << length;
    }
  }
  // NVIDIA's own rows for Llama 3 at 8192 tokens, in GFLOP a token.
  EXPECT_NEAR(flops(shapes[0], 8192) * 1e-9, 51.48, 0.02);
  EXPECT_NEAR(flops(shapes[1], 8192) * 1e-9, 449.1, 0.3);
  EXPECT_NEAR(flops(shapes[2], 8192) * 1e-9, 2526, 3);
}

TEST(Flops, OfAWindowAreThoseOfTheKeysThatItSees) {
  ModelShape shape = llama(256, 688, 2, 8, 4, 256);
  const double full = flops(shape, 1024);
  shape.sliding_window = 2048;
  EXPECT_DOUBLE_EQ(flops(shape, 1024), full) << "a window that is longer than the sequence";
  shape.sliding_window = 256;
  const double all = 1024.0 / 2, seen = 256 - 256.0 * 256 / (2 * 1024);
  EXPECT_DOUBLE_EQ(full - flops(shape, 1024), 12 * 2 * 256 * (all - seen));
  shape.layer_types = {"full_attention", "sliding_attention"};
  EXPECT_DOUBLE_EQ(full - flops(shape, 1024), 12 * 256 * (all - seen));
}

TEST(Flops, OfExpertsAreThoseOfATokensExperts) {
  ModelShape shape = llama(64, 128, 3, 4, 4, 32);
  const double dense = flops(shape, 128);
  shape.family = "qwen3_moe";
  shape.experts = {.num_experts = 8, .num_experts_per_tok = 2, .moe_intermediate_size = 48, .mlp_only_layers = {1}};
  const double router = 8 * 64, experts = 2 * 3 * 64 * 48, feed_forward = 3 * 64 * 128, norms = 2 * 16;
  EXPECT_DOUBLE_EQ(flops(shape, 128) - dense, 6 * (2 * (router + experts - feed_forward) + 3 * norms));
  shape.family = "gpt_oss";
  shape.experts.mlp_only_layers = {};
  shape.experts.moe_intermediate_size = 0;
  const double biases = 8 + 2 * (2 * 128 + 64), sinks = 4;
  EXPECT_DOUBLE_EQ(flops(shape, 128) - dense, 6 * 3 * (router + 2 * feed_forward + biases + sinks - feed_forward));
}

TEST(Flops, OfFrozenParametersHaveNoGradients) {
  const ModelShape shape = llama(64, 128, 2, 4, 4, 32);
  const double trained = flops(shape, 128);
  // All but the head: its own gradient alone, as nothing before it needs one.
  const double head = 32 * 64, others = trained / 6 - head;
  const auto is_head = [](const std::string& name) { return name == "lm_head.weight"; };
  EXPECT_DOUBLE_EQ(flops(shape, 128, [&](const std::string& name) { return !is_head(name); }), 2 * others + 4 * head);
  // The head alone: what came in still needs its gradient.
  EXPECT_DOUBLE_EQ(flops(shape, 128, is_head), 6 * others + 4 * head);
}

TEST(Flops, OfAdaptersOfEmbeddingAndHeadAreThoseOfTheirProducts) {
  ModelShape shape = llama(64, 128, 2, 4, 4, 32);
  const double trained = flops(shape, 128), attention = 6.0 * 2 * 64 * 128;
  shape.adapter = {.rank = 4, .targets = {"embed_tokens", "lm_head"}};
  const double base = 4 * (trained - attention) / 6 + attention;  // without gradients of weights
  const double factors = 4 * 64 + 4 * 64 + 4 * 32;                // B of the embedding, A and B of the head
  EXPECT_DOUBLE_EQ(flops(shape, 128, [](const std::string& name) { return !is_adapter(name); }), base + 6 * factors);
}

}  // namespace
}  // namespace meshtrain
