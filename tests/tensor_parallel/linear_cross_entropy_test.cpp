#include "tensor_parallel/linear_cross_entropy.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/memory.h"
#include "mesh/device/row_chunks.h"
#include "mesh/parameter.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kIgnored = -100;

at::Tensor make_labels(int64_t tokens, int64_t vocab_size, uint64_t seed) {
  return random_tensor({tokens}, seed).mul(1000).to(at::kLong).remainder(vocab_size);
}

struct LossOptions {
  int64_t ignored = kIgnored;
  double factor = 1;  ///< factor of the loss, before its backward
  bool sequence_parallel = false;
  Storage storage = Storage::Flat;
  int64_t tokens_at_once = 1 << 20;
};

struct Outcome {
  at::Tensor loss;
  at::Tensor x;       ///< gradient of the rows that this rank holds
  at::Tensor weight;  ///< gradient of this rank's rows of the vocabulary, padding included
};

Parameter make_head(const at::Tensor& weight, const TensorParallel& tp, Storage storage) {
  Parameter head = sharded_parameter("head", weight.sizes().vec(), 0, tp.group, {}, weight.options());
  materialize({&head}, {{"head", weight}}, storage);
  // Padding must not count, whatever it holds.
  const int64_t valid = head.box.size[0];
  head.tensor.detach().narrow(0, valid, head.shape[0] - valid).fill_(std::numeric_limits<double>::quiet_NaN());
  return head;
}

/// Computes on the complete x [T, M] and weight [V, M].
Outcome run(const at::Tensor& full_x, const at::Tensor& weight, const at::Tensor& labels, const LossOptions& options) {
  const TensorParallel tp = tensor_parallel(options.sequence_parallel);
  const Parameter head = make_head(weight, tp, options.storage);
  const at::Tensor x = own_rows(full_x, tp).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, head, labels, options.ignored, tp, options.tokens_at_once);
  (loss * options.factor).backward();
  return {loss.detach(), x.grad(), head.tensor.grad()};
}

Outcome plain(const at::Tensor& full_x, const at::Tensor& weight, const at::Tensor& labels,
              const LossOptions& options) {
  const TensorParallel tp = tensor_parallel(options.sequence_parallel);
  const at::Tensor x = full_x.to(at::kDouble).detach().clone().requires_grad_();
  const at::Tensor w = weight.to(at::kDouble).detach().clone().requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(x.mm(w.t()), labels, {}, at::Reduction::Sum, options.ignored);
  (loss * options.factor).backward();
  return {loss.detach(), own_rows(x.grad(), tp), own_box(make_head(weight, tp, Storage::Loose), w.grad())};
}

void expect_equal(const Outcome& seen, const Outcome& expected, double tolerance) {
  const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_FALSE(a.isnan().any().item<bool>());
    return (a.to(at::kDouble) - b).abs().max().item<double>();
  };
  EXPECT_LT(relative_error(seen.loss, expected.loss), tolerance);
  EXPECT_LT(difference(seen.x, expected.x), tolerance);
  EXPECT_LT(difference(seen.weight, expected.weight), tolerance);
}

// 5 rows over 4 ranks leave the last rank without any; 97 is not divisible by any number of ranks. Chunks of 12 tokens,
// or 5.
class LinearCrossEntropyTest
    : public ::testing::TestWithParam<std::tuple<int64_t, at::ScalarType, bool, Storage, int64_t>> {};

INSTANTIATE_TEST_SUITE_P(Vocabularies, LinearCrossEntropyTest,
                         ::testing::Combine(::testing::Values(1, 5, 8, 97), ::testing::Values(at::kDouble, at::kFloat),
                                            ::testing::Bool(), ::testing::Values(Storage::Loose, Storage::Flat),
                                            ::testing::Values(12, 5)));

TEST_P(LinearCrossEntropyTest, IsThePlainLossOfThePlainLayer) {
  const auto& [vocab_size, dtype, sequence_parallel, storage, tokens_at_once] = GetParam();
  const LossOptions options{kIgnored, 0.25, sequence_parallel, storage, tokens_at_once};
  const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
  const at::Tensor x = random_tensor({12, 6}, 1, dtype), weight = random_tensor({vocab_size, 6}, 2, dtype);
  at::Tensor labels = make_labels(12, vocab_size, 3);
  expect_equal(run(x, weight, labels, options), plain(x, weight, labels, options), tolerance);
  labels.narrow(0, 2, 6).fill_(kIgnored);  // one complete chunk among them
  expect_equal(run(x, weight, labels, options), plain(x, weight, labels, options), tolerance);
  labels.fill_(kIgnored);
  const Outcome none = run(x, weight, labels, options);
  EXPECT_EQ(none.loss.item<double>(), 0);
  EXPECT_EQ(none.x.abs().sum().item<double>(), 0);
  EXPECT_EQ(none.weight.abs().sum().item<double>(), 0);
  EXPECT_EQ(none.loss.scalar_type(), dtype);
}

// Its value is the cross-entropy alone, its gradient that of both losses, and the sum that of the tokens that count.
TEST(LinearCrossEntropy, AddsTheGradientOfTheZLossOfTheTokensThatCount) {
  constexpr double kCoefficient = 0.3, kFactor = 0.25;
  at::Tensor labels = make_labels(12, 97, 3);
  labels.narrow(0, 2, 6).fill_(kIgnored);
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5)})
    for (const int64_t vocab_size : {5, 97})  // of 5 ids the last of 4 ranks has none
      for (const double softcap : {0.0, 2.0})
        for (const bool sequence_parallel : {false, true}) {
          const TensorParallel tp = tensor_parallel(sequence_parallel);
          const at::Tensor full_x = random_tensor({12, 6}, 1, dtype),
                           full_weight = random_tensor({vocab_size, 6}, 2, dtype);
          const at::Tensor counted = labels.ne(kIgnored),
                           own_labels = labels.remainder(vocab_size).where(counted, labels);
          const at::Tensor x = own_rows(full_x, tp).detach().requires_grad_();
          const Parameter head = make_head(full_weight, tp, Storage::Loose);
          const LogitsZLoss z_loss{kCoefficient, at::zeros({}, at::kDouble)};
          const at::Tensor loss = linear_cross_entropy(x, head, own_labels, kIgnored, tp, 5, softcap, {}, z_loss);
          (loss * kFactor).backward();

          const at::Tensor wide_x = full_x.to(at::kDouble).detach().requires_grad_();
          const at::Tensor wide_weight = full_weight.to(at::kDouble).detach().requires_grad_();
          at::Tensor logits = wide_x.mm(wide_weight.t());
          if (softcap > 0) logits = (logits / softcap).tanh() * softcap;
          const at::Tensor entropy = at::cross_entropy_loss(logits, own_labels, {}, at::Reduction::Sum, kIgnored);
          const at::Tensor squares = logits.logsumexp(1).square().mul(counted).sum();
          ((entropy + squares * kCoefficient) * kFactor).backward();
          expect_equal({loss.detach(), x.grad(), head.tensor.grad()},
                       {entropy.detach(), own_rows(wide_x.grad(), tp), own_box(head, wide_weight.grad())}, tolerance);
          EXPECT_LT(relative_error(z_loss.sum, squares), tolerance);
          const at::NoGradGuard no_grad;
          linear_cross_entropy(x, head, own_labels, kIgnored, tp, 5, softcap, {}, z_loss);
          EXPECT_LT(relative_error(z_loss.sum, squares * 2), tolerance) << "is added to, also without a backward";
        }
}

// Chunks of one token, of all tokens, and sizes that differ by one: numbers per token are equal, sums up to their
// order.
TEST(LinearCrossEntropy, IsTheSameForEveryChunkSize) {
  constexpr int64_t kTokens = 24, kVocabulary = 97;
  const at::Tensor labels = make_labels(kTokens, kVocabulary, 3);
  for (const auto& [dtype, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
           {at::kDouble, 1e-13}, {at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}}) {
    const at::Tensor x = random_tensor({kTokens, 6}, 1, dtype), weight = random_tensor({kVocabulary, 6}, 2, dtype);
    for (const bool sequence_parallel : {false, true}) {
      const TensorParallel tp = tensor_parallel(sequence_parallel);
      const auto outcome = [&](int64_t chunk_tokens) {
        Parameter head = sharded_parameter("head", {kVocabulary, 6}, 0, tp.group, {}, weight.options());
        materialize({&head}, {{"head", weight}}, Storage::Flat, accumulation_dtype(dtype));
        const at::Tensor leaf = own_rows(x, tp).requires_grad_();
        const at::Tensor loss = linear_cross_entropy(leaf, head, labels, kIgnored, tp, chunk_tokens);
        loss.backward();
        const at::NoGradGuard no_grad;
        EXPECT_LT(relative_error(linear_cross_entropy(leaf, head, labels, kIgnored, tp, chunk_tokens), loss), 1e-6);
        return Outcome{loss.detach(), leaf.grad(), head.tensor.grad()};
      };
      const Outcome full = outcome(kTokens);
      for (const int64_t chunk_tokens : {1, 2, 3, 5, 7, 11, 12, 23, 25, 1000}) {
        const Outcome seen = outcome(chunk_tokens);
        EXPECT_LT(relative_error(seen.loss, full.loss), dtype == at::kDouble ? 1e-13 : 1e-6) << chunk_tokens;
        EXPECT_LT(relative_error(seen.x, full.x), tolerance) << chunk_tokens;
        EXPECT_LT(relative_error(seen.weight, full.weight), tolerance) << chunk_tokens;
      }
    }
  }
}

TEST(LinearCrossEntropy, CutsByDeviceAndShapeAlone) {
  const auto chunk = [](at::DeviceType device, int64_t tokens, int64_t rows, int64_t bytes, int alive = 1) {
    return head_chunk_tokens(device, tokens, rows, bytes, alive);
  };
  EXPECT_EQ(chunk(at::kCPU, 8192, 49152, 2), 328) << "25 chunks of 341 at most";
  EXPECT_EQ(chunk(at::kMeta, 8192, 49152, 2), 328);
  EXPECT_EQ(chunk(at::kCPU, 8192, 49152, 2, 2), 168);
  EXPECT_EQ(chunk(at::kCUDA, 8192, 49152, 2), 4096);
  EXPECT_EQ(chunk(at::kCUDA, 8000, 49152, 2), 8000) << "two chunks would be of less than 4,096";
  EXPECT_EQ(chunk(at::kCUDA, 8192, 131072, 2), 4096);
  EXPECT_EQ(chunk(at::kCUDA, 8192, 262144, 2), 2048);
  EXPECT_EQ(chunk(at::kCUDA, 8192, 262144, 4), 1024);
  EXPECT_EQ(chunk(at::kCUDA, 8192, 131072, 2, 2), 2048);
  EXPECT_EQ(chunk(at::kCUDA, 8192, 65536, 2, 2), 4096) << "a rank's half of 131,072";
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const int64_t bound = device == at::kCUDA ? kCudaLogitBytes : kHostLogitBytes;
    for (const int64_t tokens : {1, 2, 511, 4095, 4096, 4097, 8191, 8192, 100003}) {
      for (const int64_t rows : {1, 1000, 49152, 128256, 151936, 262144}) {
        for (const int64_t bytes : {2, 4, 8}) {
          for (const int alive : {1, 2}) {
            const int64_t most = chunk(device, tokens, rows, bytes, alive);
            EXPECT_GE(most, 1);
            EXPECT_LE(most, tokens);
            EXPECT_LE(most * rows * bytes * alive, bound);
            const bool room = 4096 * rows * bytes * alive <= bound / 2;  // space for 8,191
            if (device == at::kCPU) continue;
            EXPECT_LT(most, 2 * kCudaChunkTokens);
            EXPECT_TRUE(!room || most >= std::min(tokens, kCudaChunkTokens));
          }
        }
      }
    }
  }
  EXPECT_EQ(chunk(at::kCUDA, 100, int64_t{1} << 40, 4), 1) << "one token at least";
  EXPECT_EQ(chunk(at::kCUDA, 0, 8, 4), 1);
  EXPECT_EQ(chunk(at::kCPU, 8, 0, 4), 8) << "a rank without ids";
}

TEST(LinearCrossEntropy, AddsUpOverMicroBatches) {
  const at::Tensor weight = random_tensor({97, 6}, 2);
  const TensorParallel tp = tensor_parallel(false);
  const Parameter head = make_head(weight, tp, Storage::Flat);
  const void* buffer = head.tensor.grad().data_ptr();
  at::Tensor expected = at::zeros(head.shape, at::kDouble);
  for (uint64_t seed = 10; seed < 13; ++seed) {
    const at::Tensor x = random_tensor({12, 6}, seed), labels = make_labels(12, 97, seed);
    linear_cross_entropy(x, head, labels, kIgnored, tp, 1).backward();
    expected.add_(plain(x, weight, labels, {}).weight);
  }
  EXPECT_EQ(head.tensor.grad().data_ptr(), buffer);
  EXPECT_LT(relative_error(head.tensor.grad(), expected), 1e-12);
}

TEST(LinearCrossEntropy, IgnoresAnIdOfTheVocabularyToo) {
  const at::Tensor x = random_tensor({12, 6}, 1), weight = random_tensor({8, 6}, 2);
  const at::Tensor labels = at::arange(12).remainder(8);
  for (const int64_t ignored : {0, 5}) {
    const LossOptions options{.ignored = ignored};
    expect_equal(run(x, weight, labels, options), plain(x, weight, labels, options), 1e-12);
  }
}

// With the identity as weight, x are the logits.
TEST(LinearCrossEntropy, IsStableForLargeLogits) {
  const at::Tensor labels = make_labels(6, 97, 2), identity = at::eye(97, at::kDouble);
  for (const double offset : {-1e4, 1e4}) {
    const at::Tensor logits = random_tensor({6, 97}, 1).mul(100).add(offset);
    const Outcome seen = run(logits, identity, labels, {}), expected = plain(logits, identity, labels, {});
    EXPECT_LT(relative_error(seen.loss, expected.loss), 1e-11);
    EXPECT_LT((seen.x - expected.x).abs().max().item<double>(), 1e-11);
    const Outcome single = run(logits.to(at::kFloat), identity.to(at::kFloat), labels, {});
    EXPECT_TRUE(single.loss.isfinite().item<bool>());
    EXPECT_TRUE(single.x.isfinite().all().item<bool>());
  }
}

TEST(LinearCrossEntropy, OfHalvesIsComputedInFp32) {
  const at::Tensor labels = make_labels(64, 97, 2);
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = random_tensor({64, 97}, 1, half), identity = at::eye(97, half);
    for (const int64_t tokens_at_once : {64, 10}) {
      const LossOptions options{.tokens_at_once = tokens_at_once};
      const Outcome seen = run(logits, identity, labels, options), expected = plain(logits, identity, labels, options);
      EXPECT_EQ(seen.loss.scalar_type(), at::kFloat);
      EXPECT_EQ(seen.x.scalar_type(), half);
      EXPECT_LT(relative_error(seen.loss, expected.loss), 1e-5);
      // Only the result is rounded to halves.
      EXPECT_TRUE(at::allclose(seen.x.to(at::kDouble), expected.x, half == at::kHalf ? 1e-3 : 8e-3, 1e-7));
    }
  }
}

TEST(LinearCrossEntropy, AddsHalvesToAGradientInFp32) {
  const at::Tensor x = random_tensor({64, 6}, 1, at::kBFloat16), weight = random_tensor({97, 6}, 2, at::kBFloat16);
  const at::Tensor labels = make_labels(64, 97, 3);
  const TensorParallel tp = tensor_parallel(false);
  Parameter head = sharded_parameter("head", {97, 6}, 0, tp.group, {}, weight.options());
  materialize({&head}, {{"head", weight}}, Storage::Flat, at::kFloat);
  linear_cross_entropy(x, head, labels, kIgnored, tp, 10).backward();
  EXPECT_EQ(head.tensor.grad().scalar_type(), at::kFloat);
  EXPECT_LT(relative_error(head.tensor.grad(), plain(x, weight, labels, {}).weight), 2e-2);
}

// Chunks add up in fp32, so many of them lose no more than one product.
TEST(LinearCrossEntropy, RoundsAGradientInHalvesOnceForAllChunks) {
  const int64_t tokens = 256, vocabulary = 97;
  const at::Tensor labels = make_labels(tokens, vocabulary, 3);
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random_tensor({tokens, 32}, 1, half), weight = random_tensor({vocabulary, 32}, 2, half);
    const at::Tensor exact = plain(x, weight, labels, {}).weight.to(at::kDouble);
    for (const Storage storage : {Storage::Flat, Storage::Loose}) {
      const auto error = [&](int64_t tokens_at_once) {
        const Outcome seen = run(x, weight, labels, {.storage = storage, .tokens_at_once = tokens_at_once});
        return ((seen.weight.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
      };
      const double once = error(tokens), often = error(tokens / 64);
      EXPECT_LT(often, 1.1 * once) << half << ", one product " << once;
    }
  }
}

TEST(LinearCrossEntropy, IsTheSameOnEveryRank) {
  const at::Tensor x = random_tensor({32, 6}, 1, at::kFloat), weight = random_tensor({97, 6}, 2, at::kFloat);
  const Outcome own = run(x, weight, make_labels(32, 97, 2), {.tokens_at_once = 10});
  const at::Tensor flat = at::cat({own.loss.view({1}), own.x.flatten()});
  const Group& group = tensor_parallel(false).group;
  at::Tensor all = at::empty({group.size() * flat.numel()}, at::kFloat);
  group.all_gather(all, flat).wait();
  EXPECT_TRUE(all.view({group.size(), -1}).eq(flat).all().item<bool>());
}

TEST(LinearCrossEntropy, HasItsValueWhenBackwardHasRunOrNothingIsRecorded) {
  const at::Tensor x = random_tensor({12, 6}, 1), weight = random_tensor({97, 6}, 2), labels = make_labels(12, 97, 3);
  const TensorParallel tp = tensor_parallel(false);
  const Parameter head = make_head(weight, tp, Storage::Flat);
  const at::Tensor expected = plain(x, weight, labels, {}).loss;
  const at::Tensor loss = linear_cross_entropy(x, head, labels, kIgnored, tp);
  EXPECT_TRUE(loss.isnan().item<bool>()) << "a value that is not there cannot be taken for one";
  loss.backward();
  EXPECT_LT(relative_error(loss, expected), 1e-12);

  const at::NoGradGuard no_grad;
  const at::Tensor at_once = linear_cross_entropy(x, head, labels, kIgnored, tp);
  EXPECT_FALSE(at_once.requires_grad());
  EXPECT_TRUE(at::equal(at_once, loss));
}

TEST(LinearCrossEntropy, ComputesNoGradientThatNobodyWants) {
  const DeviceMesh mesh(MeshLayout({{"tp", world().size()}}), world());
  const TensorParallel tp{mesh.group("tp"), false};
  const at::Tensor x = random_tensor({12, 6}, 1), weight = random_tensor({97, 6}, 2), labels = make_labels(12, 97, 3);
  const Outcome expected = plain(x, weight, labels, {});

  Parameter head = make_head(weight, tp, Storage::Flat);
  mesh.traffic().clear();
  linear_cross_entropy(x, head, labels, kIgnored, tp).backward();
  EXPECT_LT(relative_error(head.tensor.grad(), expected.weight), 1e-12);
  EXPECT_EQ(mesh.traffic().total("", "tp.linear").calls, 0);

  head.tensor.mutable_grad().reset();
  head.tensor.set_requires_grad(false);
  const at::Tensor leaf = x.clone().requires_grad_();
  linear_cross_entropy(leaf, head, labels, kIgnored, tp).backward();
  EXPECT_LT(relative_error(leaf.grad(), expected.x), 1e-12);
  EXPECT_FALSE(head.tensor.grad().defined());

  EXPECT_LT(relative_error(linear_cross_entropy(x, head, labels, kIgnored, tp), expected.loss), 1e-12);
}

TEST(LinearCrossEntropy, ReturnsGradientsThatAreAskedFor) {
  const at::Tensor x = random_tensor({12, 6}, 1), weight = random_tensor({97, 6}, 2), labels = make_labels(12, 97, 3);
  const TensorParallel tp = tensor_parallel(false);
  const Parameter head = make_head(weight, tp, Storage::Flat);
  const at::Tensor loss = linear_cross_entropy(x, head, labels, kIgnored, tp, 1);
  const at::Tensor gradient = torch::autograd::grad({loss}, {head.tensor})[0];
  EXPECT_LT(relative_error(gradient, plain(x, weight, labels, {}).weight), 1e-12);
  EXPECT_EQ(head.tensor.grad().abs().sum().item<double>(), 0);
}

TEST(LinearCrossEntropy, RefusesASecondDerivative) {
  const at::Tensor x = random_tensor({12, 6}, 1).requires_grad_();
  const Parameter head = make_head(random_tensor({97, 6}, 2), tensor_parallel(false), Storage::Loose);
  const at::Tensor loss = linear_cross_entropy(x, head, make_labels(12, 97, 3), kIgnored, tensor_parallel(false));
  EXPECT_THROW(torch::autograd::grad({loss}, {x}, {}, std::nullopt, /*create_graph=*/true), std::logic_error);
}

/// Returns the peak memory of loss and backward for 2,048 tokens.
int64_t peak_of(int64_t vocab_size, std::optional<int64_t> chunk_tokens = std::nullopt) {
  HostMemory& memory = HostMemory::counted();
  const TensorParallel tp = tensor_parallel(false);
  const at::Tensor x = random_tensor({2048, 16}, 1, at::kFloat).requires_grad_();
  const Parameter head = make_head(at::zeros({vocab_size, 16}, at::kFloat), tp, Storage::Flat);
  const at::Tensor labels = make_labels(2048, vocab_size, 3);
  const int64_t before = memory.live();
  memory.restart_peak();
  linear_cross_entropy(x, head, labels, kIgnored, tp, chunk_tokens).backward();
  return memory.peak() - before;
}

TEST(LinearCrossEntropy, TakesMemoryThatDoesNotGrowWithTheVocabulary) {
  const int64_t ranks = world().size(), small = peak_of(20000 * ranks), large = peak_of(80000 * ranks);
  const int64_t stream = 2048 * 16 * 4;
  EXPECT_LT(small, 2048 * 20000 * 4 / 2) << "less than half of the logits";
  EXPECT_LT(large, kHostLogitBytes + 2 * kTemporaryBytes + 4 * stream);
}

TEST(LinearCrossEntropy, HasOneChunkOfLogitsAliveOrTwo) {
  const int64_t ranks = world().size(), chunk = 256 * 20000 * 4, stream = 2048 * 16 * 4;
  const int64_t alive = ranks > 1 ? 2 : 1, peak = peak_of(20000 * ranks, 256);
  EXPECT_GE(peak, alive * chunk);
  EXPECT_LT(peak, alive * chunk + 2 * kTemporaryBytes + 4 * stream);
}

}  // namespace
}  // namespace meshtrain::testing
