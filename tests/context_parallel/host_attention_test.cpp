#include "context_parallel/host_attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/meta_device.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;
using testing::relative_error;
using testing::split_heads;
using testing::world;

constexpr double kTileScale = 0.15;

struct TileCase {
  int64_t heads, kv_heads, queries, keys, features;
  bool causal;
};

/// Tensors of attention, and results for them.
struct Computed {
  at::Tensor q, k, v, grad;
  AttentionResult attended;
  AttentionGradients gradients;

  std::vector<at::Tensor> results() const {
    return {attended.out, attended.lse, gradients.q, gradients.k, gradients.v};
  }
};

Computed compute(const TileCase& of, at::ScalarType dtype, double growth = 0) {
  const auto made = [&](int64_t heads, int64_t length, int seed) {
    return random_tensor({2, length, heads, of.features}, seed, dtype).transpose(1, 2);
  };
  Computed computed{made(of.heads, of.queries, 1),
                    made(of.kv_heads, of.keys, 2),
                    made(of.kv_heads, of.keys, 3),
                    made(of.heads, of.queries, 4),
                    {},
                    {}};
  if (growth > 0) computed.k = computed.k * at::linspace(0, growth, of.keys).view({1, 1, -1, 1}).to(dtype);
  return computed;
}

void run(Computed& computed, bool causal) {
  ASSERT_TRUE(host_attention_takes(computed.q, computed.k, computed.v));
  computed.attended = host_attention(computed.q, computed.k, computed.v, causal, kTileScale);
  computed.gradients =
      host_attention_backward(computed.grad, computed.q, computed.k, computed.v, computed.attended, causal, kTileScale);
}

/// Computes the same from the same elements in fp64, by LibTorch's kernel.
Computed exact(const Computed& of, bool causal) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  Computed computed{wide(of.q), wide(of.k), wide(of.v), wide(of.grad), {}, {}};
  const Pairs pairs = causal ? Pairs::Causal : Pairs::All;
  computed.attended = attend(computed.q, computed.k, computed.v, pairs, {kTileScale});
  computed.gradients =
      attend_backward(computed.grad, computed.q, computed.k, computed.v, computed.attended, pairs, {kTileScale});
  return computed;
}

class HostAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (world().size() > 1) GTEST_SKIP() << "the same on every rank";
    if (!has_attention_loops(GetParam())) GTEST_SKIP() << "this processor has no such instructions";
  }
  double tolerance() const { return GetParam() == at::kFloat ? 5e-6 : 1.5e-2; }

  void expect_exact(Computed computed, bool causal) {
    run(computed, causal);
    const std::vector<at::Tensor> found = computed.results(), wanted = exact(computed, causal).results();
    for (size_t i = 0; i < found.size(); ++i) EXPECT_LE(relative_error(found[i], wanted[i]), tolerance()) << i;
    EXPECT_LE(relative_error(found[1], wanted[1]), 1e-6) << "log-sum-exp";
  }
};

// Lengths around a register, a tile and several tiles of queries and keys, which both end within a register.
TEST_P(HostAttention, IsTheDefinition) {
  for (const TileCase& of :
       {TileCase{2, 2, 48, 48, 32, true}, TileCase{4, 2, 64, 64, 64, true}, TileCase{4, 1, 65, 65, 32, true},
        TileCase{2, 1, 129, 129, 96, true}, TileCase{2, 2, 600, 600, 64, true}, TileCase{2, 1, 1090, 1090, 32, true},
        TileCase{2, 2, 48, 600, 64, false}, TileCase{4, 2, 577, 51, 32, false}, TileCase{2, 1, 530, 1030, 64, false},
        TileCase{1, 1, 70, 70, 256, true}}) {
    SCOPED_TRACE(::testing::Message() << of.queries << " queries, " << of.keys << " keys of " << of.features << ", "
                                      << of.heads << " heads on " << of.kv_heads << (of.causal ? ", causal" : ""));
    expect_exact(compute(of, GetParam()), of.causal);
  }
}

// Later tiles of keys have the larger scores, so that sums of earlier ones are scaled down.
TEST_P(HostAttention, ScalesSumsAsScoresGrow) {
  for (const double growth : {3.0, 6.0}) {
    SCOPED_TRACE(growth);
    expect_exact(compute({2, 2, 70, 1600, 64, false}, GetParam(), growth), false);
  }
}

TEST_P(HostAttention, ReadsHeadsWhereAProjectionLeftThem) {
  const at::Tensor fused = random_tensor({2, 100, 8, 64}, 7, GetParam());
  const testing::Heads heads = split_heads(fused, 4, 2);
  const Computed strided{heads.q, heads.k, heads.v, random_tensor({2, 100, 4, 64}, 8, GetParam()).transpose(1, 2),
                         {},      {}};
  ASSERT_FALSE(strided.q.transpose(1, 2).is_contiguous());
  expect_exact(strided, true);
}

TEST_P(HostAttention, IsTheSameOnAnyNumberOfThreads) {
  const TileCase of{6, 3, 200, 200, 64, true};
  Computed one = compute(of, GetParam()), three = one;
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  run(one, of.causal);
  at::set_num_threads(3);
  run(three, of.causal);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.results().size(); ++i) EXPECT_TRUE(one.results()[i].equal(three.results()[i])) << i;
}

TEST_P(HostAttention, PassesOnWhatIsNoNumber) {
  Computed computed = compute({2, 2, 64, 64, 64, true}, GetParam());
  computed.k = computed.k.clone();
  computed.k.select(2, 40).fill_(std::numeric_limits<double>::quiet_NaN());
  run(computed, true);
  EXPECT_FALSE(computed.attended.out.narrow(2, 0, 40).isnan().any().item<bool>()) << "queries before that key";
  EXPECT_TRUE(computed.attended.out.narrow(2, 40, 24).isnan().all().item<bool>()) << "queries that see it";
  EXPECT_TRUE(computed.gradients.k.isnan().any().item<bool>());
}

// An infinity becomes NaN in results, which a step notices, whichever input has it.
TEST_P(HostAttention, PassesOnInfinities) {
  for (size_t input = 0; input < 4; ++input) {
    SCOPED_TRACE(input);
    Computed computed = compute({2, 2, 64, 64, 64, true}, GetParam());
    at::Tensor& with = *std::array{&computed.q, &computed.k, &computed.v, &computed.grad}[input];
    with = with.clone();
    with.select(2, 40).fill_(std::numeric_limits<double>::infinity());
    run(computed, true);
    const auto has = [](const at::Tensor& tensor) { return !at::isfinite(tensor).all().item<bool>(); };
    const AttentionGradients& gradients = computed.gradients;
    EXPECT_TRUE(has(gradients.q) || has(gradients.k) || has(gradients.v));
    EXPECT_EQ(has(computed.attended.out), input < 3);
  }
}

// Tensors of other forms would be read beyond their ends.
TEST_P(HostAttention, RefusesFormsThatDoNotMatch) {
  const Computed computed = compute({2, 2, 64, 64, 64, true}, GetParam());
  const at::Tensor longer = random_tensor({2, 2, 80, 64}, 5, GetParam());
  EXPECT_THROW(host_attention(computed.q, longer, longer, true, kTileScale), c10::Error);
  EXPECT_THROW(host_attention(computed.q, computed.k, longer, false, kTileScale), c10::Error);
  EXPECT_NO_THROW(host_attention(computed.q, longer, longer, false, kTileScale));
}

TEST_P(HostAttention, MetaTensorsHaveTheFormOfCpuTensors) {
  Computed cpu = compute({4, 2, 70, 70, 64, true}, GetParam());
  run(cpu, true);
  const auto there = [](const at::Tensor& tensor) { return at::empty_like(tensor, at::kMeta); };
  const MetaDeviceGuard host(c10::kCPU);
  Computed meta{there(cpu.q), there(cpu.k), there(cpu.v), there(cpu.grad), {}, {}};
  run(meta, true);
  for (size_t i = 0; i < cpu.results().size(); ++i) {
    const at::Tensor found = meta.results()[i], wanted = cpu.results()[i];
    EXPECT_TRUE(found.is_meta());
    EXPECT_EQ(found.sizes(), wanted.sizes());
    EXPECT_EQ(found.strides(), wanted.strides());
    EXPECT_EQ(found.scalar_type(), wanted.scalar_type());
  }
}

TEST_P(HostAttention, LeavesOtherTensorsToLibTorch) {
  const auto takes = [&](int64_t queries, int64_t keys, int64_t features, at::ScalarType dtype) {
    const auto made = [&](int64_t length) { return at::zeros({1, 2, length, features}, dtype); };
    return host_attention_takes(made(queries), made(keys), made(keys));
  };
  EXPECT_TRUE(takes(64, 64, 64, GetParam()));
  EXPECT_FALSE(takes(1, 64, 64, GetParam())) << "a query of generation";
  EXPECT_FALSE(takes(64, 8, 64, GetParam()));
  EXPECT_FALSE(takes(64, 64, 24, GetParam())) << "features that are not whole registers";
  EXPECT_FALSE(takes(64, 64, 512, GetParam()));
  EXPECT_FALSE(takes(64, 64, 64, at::kDouble));
  const at::Tensor same = at::zeros({1, 2, 1, 64}, GetParam()).expand({1, 2, 64, 64});
  EXPECT_FALSE(host_attention_takes(same, same, same)) << "one row for all positions";
}

INSTANTIATE_TEST_SUITE_P(Dtypes, HostAttention, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

}  // namespace
}  // namespace meshtrain
