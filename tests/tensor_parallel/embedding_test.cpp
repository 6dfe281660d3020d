#include "tensor_parallel/embedding.h"

#include <ATen/TensorIndexing.h>
#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "mesh/device/row_chunks.h"
#include "tensor_parallel/linear_function.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kNumIds = 16;
constexpr int64_t kEmbeddingSize = 6;

/// Returns ids, int64 [tokens], with many repetitions.
at::Tensor make_ids(int64_t tokens, int64_t vocab_size, uint64_t seed) {
  return random_tensor({tokens}, seed).mul(1000).to(at::kLong).remainder(vocab_size);
}

VocabParallelEmbedding make_embedding(const TensorParallel& tp, int64_t vocab_size, at::ScalarType dtype) {
  return VocabParallelEmbedding(tp, "embed", vocab_size, kEmbeddingSize, {Initializer::Kind::Normal, 1},
                                at::TensorOptions().dtype(dtype));
}

// 5 rows over 4 ranks leave the last rank without any; 97 is not divisible by any number of ranks.
class EmbeddingTest : public ::testing::TestWithParam<std::tuple<int64_t, bool, Storage, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Vocabularies, EmbeddingTest,
                         ::testing::Combine(::testing::Values(5, 8, 97), ::testing::Bool(),
                                            ::testing::Values(Storage::Loose, Storage::Flat),
                                            ::testing::Values(at::kDouble, at::kFloat)));

TEST_P(EmbeddingTest, IsThePlainTable) {
  const auto& [vocab_size, sequence_parallel, storage, dtype] = GetParam();
  const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
  const TensorParallel tp = tensor_parallel(sequence_parallel);
  VocabParallelEmbedding embedding = make_embedding(tp, vocab_size, dtype);
  const auto values = full_values(embedding.parameters());
  materialize(embedding.parameters(), values, storage);
  const at::Tensor& full = values.at("embed.weight");

  for (uint64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor ids = make_ids(kNumIds, vocab_size, micro_batch);
    const at::Tensor dy = random_tensor({kNumIds, kEmbeddingSize}, 10 + micro_batch);
    const at::Tensor expected = full.index({ids});
    expected.backward(dy);
    const at::Tensor y = embedding.forward(ids);
    EXPECT_TRUE(at::equal(y, own_rows(expected, tp).to(dtype)));
    const at::Tensor upstream = own_rows(dy, tp).to(dtype);
    const at::Tensor before = upstream.clone();
    y.backward(upstream);
    EXPECT_TRUE(at::equal(upstream, before));
  }
  // With padding, whose gradient is zero.
  EXPECT_LT(relative_error(embedding.weight().tensor.grad(), own_box(embedding.weight(), full.grad())), tolerance);
}

// As padding_idx of torch.nn.Embedding: looked up like any other row, without a gradient.
TEST_P(EmbeddingTest, AFrozenRowHasNoGradient) {
  const auto& [vocab_size, sequence_parallel, storage, dtype] = GetParam();
  const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
  const TensorParallel tp = tensor_parallel(sequence_parallel);
  for (const int64_t frozen : {int64_t{0}, vocab_size - 1}) {
    VocabParallelEmbedding embedding = make_embedding(tp, vocab_size, dtype);
    embedding.freeze_row(frozen);
    const auto values = full_values(embedding.parameters());
    materialize(embedding.parameters(), values, storage);
    const at::Tensor& full = values.at("embed.weight");
    const at::Tensor ids = make_ids(kNumIds, vocab_size, 3);
    ids[4] = ids[9] = frozen;
    const at::Tensor dy = random_tensor({kNumIds, kEmbeddingSize}, 4);
    const at::Tensor expected = at::embedding(full, ids, /*padding_idx=*/frozen);
    expected.backward(dy);
    const at::Tensor y = embedding.forward(ids);
    EXPECT_TRUE(at::equal(y, own_rows(expected, tp).to(dtype)));
    y.backward(own_rows(dy, tp).to(dtype));
    EXPECT_FALSE(full.grad()[frozen].any().item<bool>());
    EXPECT_LT(relative_error(embedding.weight().tensor.grad(), own_box(embedding.weight(), full.grad())), tolerance);
  }
}

TEST(Embedding, DeclaresAPaddedParameter) {
  const DeviceMesh mesh = imagined_mesh(3, 4);
  VocabParallelEmbedding embedding = make_embedding({mesh.group("tp"), false}, 5, at::kFloat);
  ASSERT_EQ(embedding.parameters().size(), 1U);
  const Parameter& weight = *embedding.parameters()[0];
  EXPECT_EQ(&weight, &embedding.weight());
  EXPECT_EQ(weight.name, "embed.weight");
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{2, kEmbeddingSize}));
  EXPECT_EQ(weight.global_shape, (std::vector<int64_t>{5, kEmbeddingSize}));
  EXPECT_EQ(weight.box, (Box{{5, 0}, {0, kEmbeddingSize}}));
  EXPECT_EQ(weight.sharded_over, "tp");
}

TEST(Embedding, FrozenGetsNoGradient) {
  VocabParallelEmbedding embedding = make_embedding(tensor_parallel(true), 8, at::kDouble);
  materialize(embedding.parameters(), full_values(embedding.parameters()), Storage::Loose);
  embedding.weight().tensor.set_requires_grad(false);
  EXPECT_FALSE(embedding.forward(make_ids(kNumIds, 8, 1)).requires_grad());
}

TEST(Embedding, OfHalvesAddsUpInAnFp32Buffer) {
  const TensorParallel tp = tensor_parallel(false);
  VocabParallelEmbedding embedding = make_embedding(tp, 5, at::kBFloat16);
  const at::Tensor flat =
      materialize(embedding.parameters(), full_values(embedding.parameters()), Storage::Flat, at::kFloat);
  constexpr int64_t kRepeats = 1000;  // far more than bf16 can count
  embedding.forward(at::zeros({kRepeats}, at::kLong)).backward(at::ones({kRepeats, kEmbeddingSize}, at::kBFloat16));
  const at::Tensor gradient = embedding.weight().tensor.grad();
  EXPECT_EQ(gradient[0].sum().item<double>(), tp.group.rank() == 0 ? kRepeats * kEmbeddingSize : 0);
  EXPECT_EQ(flat.sum().item<double>(), tp.group.rank() == 0 ? kRepeats * kEmbeddingSize : 0);
}

// One token occurs 10,000 times between others, far more often than a half can count: each sum is rounded once.
TEST(Embedding, OfHalvesLosesNothingOfAFrequentToken) {
  constexpr int64_t kFrequent = 10000, kOthers = 96, kVocabulary = 97, kWide = 256;
  const at::Tensor shuffled = random_tensor({kFrequent + kOthers}, 1).argsort();
  const at::Tensor ids =
      at::cat({at::full({kFrequent}, 3, at::kLong), make_ids(kOthers, kVocabulary, 2)}).index({shuffled});
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    const double half_ulp = half == at::kHalf ? 0x1p-11 : 0x1p-8;
    for (const bool sequence_parallel : {false, true}) {
      const TensorParallel tp = tensor_parallel(sequence_parallel);
      const at::Tensor dy = random_tensor({ids.numel(), kWide}, 3, half).add_(0.5);
      at::Tensor before, seen;
      Parameter box;
      for (int run = 0; run < 2; ++run) {
        VocabParallelEmbedding embedding(tp, "embed", kVocabulary, kWide, {}, at::TensorOptions().dtype(half));
        box = embedding.weight();
        materialize(embedding.parameters(), full_values(embedding.parameters()), Storage::Flat);
        const at::Tensor gradient = embedding.weight().tensor.grad();
        gradient.copy_(random_tensor(gradient.sizes(), 4));
        before = gradient.clone();
        embedding.forward(ids).backward(own_rows(dy, tp));
        EXPECT_TRUE(run == 0 || at::equal(gradient, seen)) << "the same bits every run";
        seen = gradient.clone();
      }
      const at::Tensor sums = at::zeros({kVocabulary, kWide}, at::kDouble).index_add_(0, ids, dy.to(at::kDouble));
      const at::Tensor exact = before.to(at::kDouble) + own_box(box, sums);
      const at::Tensor allowed = exact.abs().mul(half_ulp).add(1e-6 * kFrequent);
      EXPECT_TRUE((seen.to(at::kDouble) - exact).abs().le(allowed).all().item<bool>()) << half;
    }
  }
}

TEST(Embedding, OfManyTokensIsAddedInPieces) {
  constexpr int64_t kWide = 512, kMany = 2400;
  static_assert(kWide * kMany * 8 > 2 * kTemporaryBytes);
  const TensorParallel tp = tensor_parallel(true);
  VocabParallelEmbedding embedding(tp, "embed", 97, kWide, {}, at::TensorOptions().dtype(at::kDouble));
  const auto values = full_values(embedding.parameters());
  materialize(embedding.parameters(), values, Storage::Flat);
  const at::Tensor ids = make_ids(kMany, 97, 1), dy = random_tensor({kMany, kWide}, 2);
  const at::Tensor& full = values.at("embed.weight");
  full.index({ids}).backward(dy);
  embedding.forward(ids).backward(own_rows(dy, tp));
  EXPECT_LT(relative_error(embedding.weight().tensor.grad(), own_box(embedding.weight(), full.grad())), 1e-12);
}

TEST(Embedding, TiedToTheHeadGathersBothGradients) {
  const at::Tensor ids = make_ids(kNumIds, 97, 1);
  for (const bool sequence_parallel : {false, true}) {
    for (const Storage storage : {Storage::Loose, Storage::Flat}) {
      const TensorParallel tp = tensor_parallel(sequence_parallel);
      VocabParallelEmbedding embedding = make_embedding(tp, 97, at::kDouble);
      const auto values = full_values(embedding.parameters());
      materialize(embedding.parameters(), values, storage);
      const at::Tensor& full = values.at("embed.weight");

      at::mm(full.index({ids}).tanh(), full.t()).square().sum().backward();
      const at::Tensor x = embedding.forward(ids).tanh();
      column_parallel_linear(x, {embedding.weight().tensor}, {}, tp).square().sum().backward();
      EXPECT_LT(relative_error(embedding.weight().tensor.grad(), own_box(embedding.weight(), full.grad())), 1e-12);
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
