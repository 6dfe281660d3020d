#include "tensor_parallel/adapter.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/embedding.h"
#include "tensor_parallel/linear.h"
#include "tensor_parallel/linear_cross_entropy.h"
#include "tensor_parallel/vocabulary_logits.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kAdapterTokens = 12;
constexpr int64_t kAdapterIn = 16;
constexpr int64_t kAdapterOut = 20;

/// Sequence parallel, dropout, storage, dtype.
class AdapterTest : public ::testing::TestWithParam<std::tuple<bool, double, Storage, at::ScalarType>> {
 protected:
  bool sequence_parallel() const { return std::get<0>(GetParam()); }
  double dropout() const { return std::get<1>(GetParam()); }
  Storage storage() const { return std::get<2>(GetParam()); }
  at::ScalarType dtype() const { return std::get<3>(GetParam()); }
  double tolerance() const { return dtype() == at::kDouble ? 1e-12 : 1e-5; }

  AdapterOptions options(int64_t rank, double scale) const {
    return {.rank = rank, .scale = scale, .dropout = {dropout(), 7}, .initializer = {Initializer::Kind::Normal, 1}};
  }
  at::Tensor tokens(int64_t micro_batch) const { return at::arange(kAdapterTokens) * 5 + 100 * micro_batch; }
};

INSTANTIATE_TEST_SUITE_P(Layers, AdapterTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0.0, 0.25),
                                            ::testing::Values(Storage::Loose, Storage::Flat),
                                            ::testing::Values(at::kDouble, at::kFloat)));

using Values = std::map<std::string, at::Tensor>;

/// Returns the output of a layer of `name` without a mesh. `factors`: what dropout multiplies x by.
at::Tensor plain_layer(const at::Tensor& x, const Values& values, const std::string& name, double scale,
                       const at::Tensor& factors) {
  const at::Tensor y = at::matmul(x, values.at(name + ".weight").t());
  if (!values.contains(name + ".lora_A.weight")) return y;
  const at::Tensor hidden = at::matmul(x * factors, values.at(name + ".lora_A.weight").t());
  return y + scale * at::matmul(hidden, values.at(name + ".lora_B.weight").t());
}

/// Expects the sums over tp of the gradients that are partial there, and the other gradients, to be those in `values`.
/// Base weights are frozen.
void expect_gradients(const std::vector<Parameter*>& parameters, const Values& values, const TensorParallel& tp,
                      double tolerance) {
  for (const Parameter* parameter : parameters) {
    if (!parameter->tensor.requires_grad()) continue;
    at::Tensor gradient = parameter->tensor.grad().clone();
    if (!parameter->partial_over.empty()) tp.group.all_reduce(gradient).wait();
    const at::Tensor expected = own_box(*parameter, values.at(parameter->name).grad());
    EXPECT_LT(relative_error(gradient, expected), tolerance) << parameter->name;
  }
}

void freeze_base(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (parameter->name.find("lora_") == std::string::npos) parameter->tensor.set_requires_grad(false);
  }
}

TEST_P(AdapterTest, OfAColumnParallelLayerIsThePlainOne) {
  const TensorParallel tp = tensor_parallel(sequence_parallel());
  const std::vector<ColumnParallelLinear::Output> outputs = {
      {"q", 16, options(4, 0.5)}, {"k", 8}, {"v", 4, options(2, 3)}};
  ColumnParallelLinear layer(tp, kAdapterIn, outputs, false, {Initializer::Kind::Normal, 1},
                             at::TensorOptions(dtype()));
  const Values values = full_values(layer.parameters());
  materialize(layer.parameters(), values, storage());
  freeze_base(layer.parameters());

  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor factors =
        drop(at::ones({kAdapterTokens, kAdapterIn}, at::kDouble), tokens(micro_batch), 0, {dropout(), 7});
    const at::Tensor full_x = random_tensor({kAdapterTokens, kAdapterIn}, 1 + micro_batch).requires_grad_();
    std::vector<at::Tensor> own_y, own_dy, full_y, full_dy;
    for (const auto& [name, features, adapter] : outputs) {
      full_y.push_back(plain_layer(full_x, values, name, adapter ? adapter->scale : 0, factors));
      full_dy.push_back(random_tensor({kAdapterTokens, features}, static_cast<uint64_t>(10 * micro_batch + features)));
      own_y.push_back(own_part(full_y.back(), 1));
      own_dy.push_back(own_part(full_dy.back(), 1));
    }
    at::cat(full_y, 1).backward(at::cat(full_dy, 1));

    const at::Tensor x = own_rows(full_x, tp).to(dtype()).requires_grad_();
    const at::Tensor y = layer.forward(x, tokens(micro_batch));
    EXPECT_LT(relative_error(y, at::cat(own_y, 1)), tolerance());
    y.backward(at::cat(own_dy, 1).to(dtype()));
    EXPECT_LT(relative_error(x.grad(), own_rows(full_x.grad(), tp)), tolerance());
  }
  expect_gradients(layer.parameters(), values, tp, tolerance());
}

TEST_P(AdapterTest, OfARowParallelLayerIsThePlainOne) {
  const TensorParallel tp = tensor_parallel(sequence_parallel());
  RowParallelLinear layer(tp, "down", kAdapterIn, kAdapterOut, false, {Initializer::Kind::Normal, 1},
                          at::TensorOptions(dtype()), options(3, 0.5));
  const Values values = full_values(layer.parameters());
  materialize(layer.parameters(), values, storage());
  freeze_base(layer.parameters());

  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor factors =
        drop(at::ones({kAdapterTokens, kAdapterIn}, at::kDouble), tokens(micro_batch), 0, {dropout(), 7});
    const at::Tensor full_x = random_tensor({kAdapterTokens, kAdapterIn}, 1 + micro_batch).requires_grad_();
    const at::Tensor full_dy = random_tensor({kAdapterTokens, kAdapterOut}, 3 + micro_batch);
    const at::Tensor full_y = plain_layer(full_x, values, "down", 0.5, factors);
    full_y.backward(full_dy);

    const at::Tensor x = own_part(full_x, 1).to(dtype()).requires_grad_();
    const at::Tensor y = layer.forward(x, tokens(micro_batch));
    EXPECT_LT(relative_error(y, own_rows(full_y, tp)), tolerance());
    y.backward(own_rows(full_dy, tp).to(dtype()));
    EXPECT_LT(relative_error(x.grad(), own_part(full_x.grad(), 1)), tolerance());
  }
  expect_gradients(layer.parameters(), values, tp, tolerance());
}

// 5 rows over 4 ranks leave the last rank without any; 97 is not divisible by any number of ranks.
TEST_P(AdapterTest, OfAnEmbeddingIsThePlainOne) {
  for (const int64_t vocab_size : {5, 97}) {
    const TensorParallel tp = tensor_parallel(sequence_parallel());
    VocabParallelEmbedding embedding(tp, "embed", vocab_size, kAdapterIn, {Initializer::Kind::Normal, 1},
                                     at::TensorOptions(dtype()), options(3, 0.5));
    embedding.freeze_row(2);
    const Values values = full_values(embedding.parameters());
    materialize(embedding.parameters(), values, storage());
    freeze_base(embedding.parameters());
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const at::Tensor ids =
          random_tensor({kAdapterTokens}, 1 + micro_batch).mul(1000).to(at::kLong).remainder(vocab_size);
      ids[3] = ids[7] = 2;
      const at::Tensor hidden = at::embedding(values.at("embed.lora_embedding_A"), ids, /*padding_idx=*/2);
      const at::Tensor full_y = at::embedding(values.at("embed.weight"), ids) +
                                0.5 * at::matmul(hidden, values.at("embed.lora_embedding_B").t());
      const at::Tensor full_dy = random_tensor({kAdapterTokens, kAdapterIn}, 3 + micro_batch);
      full_y.backward(full_dy);
      const at::Tensor y = embedding.forward(ids);
      EXPECT_LT(relative_error(y, own_rows(full_y, tp)), tolerance());
      y.backward(own_rows(full_dy, tp).to(dtype()));
    }
    EXPECT_FALSE(embedding.weight().tensor.grad().defined() && storage() == Storage::Loose);
    expect_gradients(embedding.parameters(), values, tp, tolerance());
  }
}

// Chunks of all tokens, and of 5.
TEST_P(AdapterTest, OfAHeadIsThePlainOne) {
  for (const int64_t vocab_size : {5, 97}) {
    for (const int64_t chunk_tokens : {12, 5}) {
      const TensorParallel tp = tensor_parallel(sequence_parallel());
      const double softcap = vocab_size == 5 ? 0 : 3;
      Parameter head = sharded_parameter("head.weight", {vocab_size, kAdapterIn}, 0, tp.group,
                                         {Initializer::Kind::Normal, 1}, at::TensorOptions(dtype()));
      std::vector<Adapter> adapter = {
          column_parallel_adapter(tp, "head", kAdapterIn, vocab_size, options(3, 0.5), at::TensorOptions(dtype()))};
      const std::vector<Parameter*> parameters = {&head, &adapter[0].a, &adapter[0].b};
      const Values values = full_values(parameters);
      materialize(parameters, values, storage());
      freeze_base(parameters);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const at::Tensor factors =
            drop(at::ones({kAdapterTokens, kAdapterIn}, at::kDouble), tokens(micro_batch), 0, {dropout(), 7});
        const at::Tensor labels = random_tensor({kAdapterTokens}, 5).mul(1000).to(at::kLong).remainder(vocab_size);
        labels[4] = -100;
        const at::Tensor full_x = random_tensor({kAdapterTokens, kAdapterIn}, 1 + micro_batch).requires_grad_();
        at::Tensor logits = plain_layer(full_x, values, "head", 0.5, factors);
        if (softcap > 0) logits = softcap * at::tanh(logits / softcap);
        const at::Tensor expected = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100);
        expected.backward();

        const AdapterTerms terms = adapter_terms(adapter, {0}, tokens(micro_batch));
        const at::Tensor x = own_rows(full_x, tp).detach().to(dtype()).requires_grad_();
        const at::Tensor loss = linear_cross_entropy(x, head, labels, -100, tp, chunk_tokens, softcap, terms);
        loss.backward();
        EXPECT_LT(relative_error(loss, expected), tolerance());
        EXPECT_LT(relative_error(x.grad(), own_rows(full_x.grad(), tp)), 10 * tolerance());
        const at::NoGradGuard no_grad;
        EXPECT_LT(
            relative_error(linear_cross_entropy(x, head, labels, -100, tp, chunk_tokens, softcap, terms), expected),
            tolerance());
        const at::Tensor row = full_x[0].detach().to(dtype());
        const at::Tensor plain_logits = plain_layer(full_x, values, "head", 0.5, at::ones_like(factors))[0];
        EXPECT_LT(relative_error(VocabularyLogits(row, head, tp, 0, adapter_terms(adapter, {0})).full(), plain_logits),
                  tolerance());
      }
      expect_gradients(parameters, values, tp, 10 * tolerance());
    }
  }
}

// A half would be rounded once a chunk.
TEST(Adapters, OfAHeadAddChunksInFp32) {
  const at::TensorOptions half = at::kBFloat16;
  const AdapterOptions options{.rank = 2, .scale = 0.5, .initializer = {Initializer::Kind::Normal, 1}};
  const TensorParallel tp;
  Parameter head =
      sharded_parameter("head.weight", {32, kAdapterIn}, 0, tp.group, {Initializer::Kind::Normal, 1}, half);
  std::vector<Adapter> adapter = {column_parallel_adapter(tp, "head", kAdapterIn, 32, options, half)};
  const std::vector<Parameter*> parameters = {&head, &adapter[0].a, &adapter[0].b};
  const Values values = full_values(parameters);
  const at::Tensor x = random_tensor({512, kAdapterIn}, 1, at::kBFloat16).requires_grad_();
  const at::Tensor labels = at::arange(512).remainder(32);
  std::map<std::string, at::Tensor> at_once;
  for (const int64_t chunk_tokens : {512, 2}) {
    materialize(parameters, values, Storage::Flat);
    freeze_base(parameters);
    linear_cross_entropy(x, head, labels, -100, tp, chunk_tokens, 0, adapter_terms(adapter, {0})).backward();
    for (const Parameter* factor : {parameters[1], parameters[2]}) {
      const at::Tensor gradient = factor->tensor.grad().to(at::kDouble);
      if (chunk_tokens == 512) at_once[factor->name] = gradient;
      EXPECT_LT(relative_error(gradient, at_once.at(factor->name)), 6e-3) << factor->name;
    }
  }
}

TEST(Adapters, DeclareTheirFactors) {
  const DeviceMesh mesh = imagined_mesh(1, 4);
  const TensorParallel tp{mesh.group("tp"), false};
  const AdapterOptions adapter{.rank = 2, .initializer = {.kind = Initializer::Kind::Uniform, .bound = 0.5}};
  ColumnParallelLinear column(tp, 6, {{"q", 8, adapter}, {"k", 4}, {"v", 4, adapter}}, true, {}, at::kFloat);
  const std::vector<Parameter*> all = column.parameters();
  ASSERT_EQ(all.size(), 10U);
  EXPECT_EQ(all[6]->name, "q.lora_A.weight");
  EXPECT_EQ(all[6]->shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(all[6]->partial_over, "tp");
  EXPECT_EQ(all[6]->sharded_over, "");
  EXPECT_FALSE(all[6]->follows_previous);
  EXPECT_EQ(all[6]->initializer.bound, 0.5);
  EXPECT_EQ(all[7]->name, "v.lora_A.weight");
  EXPECT_TRUE(all[7]->follows_previous) << "one product for both";
  EXPECT_EQ(all[8]->name, "q.lora_B.weight");
  EXPECT_EQ(all[8]->box, (Box{{2, 0}, {2, 2}}));
  EXPECT_EQ(all[8]->partial_over, "");
  EXPECT_EQ(all[8]->initializer.kind, Initializer::Kind::Zeros);

  RowParallelLinear row(tp, "o", 8, 6, true, {}, at::kFloat, adapter);
  ASSERT_EQ(row.parameters().size(), 4U);
  EXPECT_EQ(row.parameters()[2]->box, (Box{{0, 2}, {2, 2}}));
  EXPECT_EQ(row.parameters()[2]->partial_over, "");
  EXPECT_EQ(row.parameters()[3]->shape, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(row.parameters()[3]->partial_over, "tp") << "each rank has the hidden values of its features";

  VocabParallelEmbedding embedding(tp, "embed", 7, 6, {}, at::kFloat, adapter);
  ASSERT_EQ(embedding.parameters().size(), 3U);
  const Parameter &a = *embedding.parameters()[1], &b = *embedding.parameters()[2];
  EXPECT_EQ(a.name, "embed.lora_embedding_A");
  EXPECT_EQ(a.box, (Box{{2, 0}, {2, 2}}));
  EXPECT_EQ(a.partial_over, "");
  EXPECT_EQ(b.name, "embed.lora_embedding_B");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(b.partial_over, "tp") << "each rank has the hidden values of its ids";
}

TEST(Adapters, WithoutTokensDropNothing) {
  const AdapterOptions dropping{.rank = 2, .dropout = {0.5, 7}}, plain{.rank = 2};
  ColumnParallelLinear with({}, kAdapterIn, {{"up", kAdapterOut, dropping}}, false, {}, at::kDouble);
  ColumnParallelLinear without({}, kAdapterIn, {{"up", kAdapterOut, plain}}, false, {}, at::kDouble);
  const Values values = full_values(with.parameters());
  materialize(with.parameters(), values, Storage::Loose);
  materialize(without.parameters(), values, Storage::Loose);
  const at::Tensor x = random_tensor({kAdapterTokens, kAdapterIn}, 1);
  EXPECT_TRUE(at::equal(with.forward(x), without.forward(x)));
  EXPECT_FALSE(at::equal(with.forward(x, at::arange(kAdapterTokens)), without.forward(x)));
}

}  // namespace
}  // namespace meshtrain::testing
