#include "context_parallel/attention.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <stdexcept>

#include "context_parallel/choice.h"
#include "mesh/device/aten.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::dense_attention;
using testing::Documents;
using testing::DtypeTolerance;
using testing::Heads;
using testing::kAlgorithms;
using testing::kZigZag;
using testing::random_tensor;
using testing::relative_error;
using testing::split_heads;
using testing::world;

constexpr double kScale = 0.35;
constexpr int64_t kHeadDim = 8;
constexpr int64_t kPositions = 12;  // of a rank: two zig-zag chunks of six
constexpr auto kContiguous = SequenceLayout::Kind::Contiguous;

struct Case {
  ContextAlgorithm algorithm = ContextAlgorithm::Ring;
  SequenceLayout::Kind kind = kZigZag;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t batch = 1;
  Documents documents = {};
  DtypeTolerance precision = {at::kDouble, 1e-12};
  int64_t window = 0;
  double softcap = 0;
  bool sinks = false;
  int64_t head_dim = kHeadDim;
  int64_t positions = kPositions;  // of a rank
};

int64_t sequence_length(int64_t positions = kPositions) {
  return positions * world().size();
}

SequenceLayout layout_of(SequenceLayout::Kind kind, int64_t positions = kPositions) {
  return SequenceLayout(kind, sequence_length(positions), world().size(), world().rank());
}

at::Tensor run(const Heads& heads, const SequenceLayout& layout, ContextAlgorithm algorithm,
               const AttentionRule& rule = {kScale}) {
  return attention(heads.q, heads.k, heads.v, layout, world(), algorithm, rule);
}

/// Calls `check` with every algorithm and layout.
template <class Check>
void for_all(const Check& check) {
  for (const ContextAlgorithm algorithm : kAlgorithms) {
    for (const auto kind : {kContiguous, kZigZag}) {
      SCOPED_TRACE(::testing::Message() << name(algorithm) << ", " << name(kind));
      check(algorithm, kind);
    }
  }
}

/// Expects the local outputs and gradients to equal the local part of those of the definition, on the complete
/// sequence.
void expect_definition(const Case& c) {
  const int64_t all_heads = c.num_heads + 2 * c.num_kv_heads, length = sequence_length(c.positions);
  AttentionRule rule{kScale, c.window, c.softcap}, local_rule = rule;
  if (c.sinks) {
    rule.sinks = random_tensor({c.num_heads}, 3).mul(2).to(c.precision.dtype);
    local_rule.sinks = rule.sinks.clone().set_requires_grad(true);
    rule.sinks = rule.sinks.to(at::kDouble).set_requires_grad(true);
  }
  SequenceLayout layout = layout_of(c.kind, c.positions);
  const at::Tensor fused = random_tensor({c.batch, length, all_heads, c.head_dim}, 1, c.precision.dtype);
  const at::Tensor grad = random_tensor({c.batch, length, c.num_heads, c.head_dim}, 2, c.precision.dtype);

  const at::Tensor full = fused.to(at::kDouble).clone().set_requires_grad(true);
  const Heads heads = split_heads(full, c.num_heads, c.num_kv_heads);
  const at::Tensor expected = dense_attention(heads.q, heads.k, heads.v, c.documents, rule).transpose(1, 2);
  expected.backward(grad.to(at::kDouble));

  const at::Tensor local = layout.take(fused, 1).clone().set_requires_grad(true);
  if (!c.documents.empty()) layout = layout.with_documents(c.documents);
  const at::Tensor found =
      run(split_heads(local, c.num_heads, c.num_kv_heads), layout, c.algorithm, local_rule).transpose(1, 2);
  found.backward(layout.take(grad, 1));

  EXPECT_EQ(found.scalar_type(), c.precision.dtype);
  EXPECT_TRUE(found.is_contiguous()) << "the caller's transpose to [B, s, H, D] is free";
  EXPECT_LE(relative_error(found, layout.take(expected, 1)), c.precision.tolerance);
  const std::vector<int64_t> sizes = {c.num_heads, c.num_kv_heads, c.num_kv_heads};
  const std::vector<at::Tensor> have = local.grad().split_with_sizes(sizes, 2);
  const std::vector<at::Tensor> want = layout.take(full.grad(), 1).split_with_sizes(sizes, 2);
  for (size_t i = 0; i < sizes.size(); ++i) {
    // With documents of one token the gradients of q and k are zero: their error is measured relative to the gradient
    // of v.
    const bool zero = want[i].abs().max().item<double>() == 0;
    const double error = zero ? have[i].abs().max().item<double>() / want[2].abs().max().item<double>()
                              : relative_error(have[i], want[i]);
    EXPECT_LE(error, c.precision.tolerance) << "gradient of "
                                            << "qkv"[i];
  }
  if (!c.sinks) return;
  EXPECT_EQ(local_rule.sinks.grad().scalar_type(), c.precision.dtype);
  at::Tensor sum = local_rule.sinks.grad().to(at::kDouble);
  world().all_reduce(sum).wait();
  EXPECT_LE(relative_error(sum, rule.sinks.grad()), c.precision.tolerance) << "gradient of sinks";
}

/// Returns positions of documents relative to chunks: by name, the starts in one sequence.
std::vector<std::pair<std::string, std::vector<int64_t>>> document_cases() {
  const int64_t length = sequence_length();
  std::vector<int64_t> chunks(2 * world().size() - 1), shifted(2 * world().size() - 1), tokens(length - 1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i] = 6 * (static_cast<int64_t>(i) + 1);
    shifted[i] = chunks[i] - 2;
  }
  std::iota(tokens.begin(), tokens.end(), 1);
  return {{"a document as long as a chunk", chunks}, {"documents across every chunk border", shifted},
          {"documents of one token", tokens},        {"one token at each end", {1, length - 1}},
          {"one longer than a rank's part", {5}},    {"several inside one chunk", {2, 3, 5}}};
}

TEST(Attention, IsTheDefinition) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const int64_t num_kv_heads : {4, 2, 1}) {
      for (const int64_t batch : {1, 3}) {
        SCOPED_TRACE(::testing::Message() << "KV heads " << num_kv_heads << ", batch " << batch);
        expect_definition({.algorithm = algorithm, .kind = kind, .num_kv_heads = num_kv_heads, .batch = batch});
      }
    }
    // 12 query heads on 3: each KV head is repeated 2 times for 2 ranks, 4 times for 4.
    expect_definition({.algorithm = algorithm, .kind = kind, .num_heads = 12, .num_kv_heads = 3, .batch = 2});
  });
}

TEST(Attention, StaysInsideDocuments) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const auto& [name, starts] : document_cases()) {
      SCOPED_TRACE(name);
      expect_definition({.algorithm = algorithm, .kind = kind, .documents = {starts}});
      expect_definition(
          {.algorithm = algorithm, .kind = kind, .num_kv_heads = 4, .batch = 2, .documents = {starts, starts}});
    }
  });
}

TEST(Attention, EachSequenceHasItsOwnDocuments) {
  Documents documents = {{}};
  for (const auto& [name, starts] : document_cases()) documents.push_back(starts);
  documents.push_back(documents.back());
  for_all([&](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    const int64_t batch = static_cast<int64_t>(documents.size());
    expect_definition({.algorithm = algorithm, .kind = kind, .batch = batch, .documents = documents});
    expect_definition(
        {.algorithm = algorithm, .kind = kind, .num_kv_heads = 1, .batch = batch, .documents = documents});
  });
}

TEST(Attention, KeepsItsPrecisionInEachDtype) {
  const std::vector<DtypeTolerance> precisions = {{at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}};
  for_all([&](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const DtypeTolerance& precision : precisions) {
      SCOPED_TRACE(precision.dtype);
      for (const int64_t num_kv_heads : {2, 1}) {
        expect_definition(
            {.algorithm = algorithm, .kind = kind, .num_kv_heads = num_kv_heads, .batch = 2, .precision = precision});
        expect_definition({.algorithm = algorithm,
                           .kind = kind,
                           .num_kv_heads = num_kv_heads,
                           .batch = 2,
                           .documents = {{5}, {}},
                           .precision = precision});
      }
    }
  });
}

// Parts that the kernels in tiles take, with windows and documents that end within their tiles.
TEST(Attention, InTilesIsTheDefinition) {
  if (world().size() > 2) GTEST_SKIP() << "two ranks have all kinds of blocks";
  constexpr int64_t kTiled = 148;
  const int64_t length = sequence_length(kTiled);
  for_all([&](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const DtypeTolerance& precision : {DtypeTolerance{at::kFloat, 1e-5}, DtypeTolerance{at::kBFloat16, 3e-2}}) {
      for (const auto& [window, documents] : {std::pair<int64_t, Documents>{0, {}},
                                              {40, {}},
                                              {300, {}},
                                              {0, {{5, 70, length - 33}, {length / 2}}},
                                              {40, {{50, 120}, {}}}}) {
        SCOPED_TRACE(::testing::Message()
                     << precision.dtype << ", window " << window << ", " << documents.size() << " with documents");
        Case c{.algorithm = algorithm, .kind = kind, .num_heads = 6, .num_kv_heads = 2, .batch = 2};
        c.documents = documents, c.precision = precision, c.window = window, c.head_dim = 32, c.positions = kTiled;
        expect_definition(c);
      }
    }
  });
}

/// Returns windows around the parts of 12 and chunks of 6 positions, and around the complete sequence.
std::vector<int64_t> windows() {
  const int64_t length = sequence_length();
  std::vector<int64_t> all = {1, 2, 3, 5, 6, 7, 11, 12, 13, 17, 25, length - 2, length - 1, length, length + 100};
  std::erase_if(all, [&](int64_t window) { return window > length && window != length + 100; });
  return all;
}

TEST(Attention, StaysInsideTheWindow) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const int64_t window : windows()) {
      SCOPED_TRACE(::testing::Message() << "window " << window);
      for (const auto& [num_kv_heads, batch] : {std::pair{1, 1}, {2, 3}}) {
        expect_definition(
            {.algorithm = algorithm, .kind = kind, .num_kv_heads = num_kv_heads, .batch = batch, .window = window});
      }
    }
  });
}

TEST(Attention, StaysInsideTheWindowAndDocuments) {
  Documents documents = {{}};
  for (const auto& [name, starts] : document_cases()) documents.push_back(starts);
  documents.push_back(documents.back());
  for_all([&](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const int64_t window : windows()) {
      SCOPED_TRACE(::testing::Message() << "window " << window);
      expect_definition({.algorithm = algorithm,
                         .kind = kind,
                         .batch = static_cast<int64_t>(documents.size()),
                         .documents = documents,
                         .window = window});
    }
  });
}

// Scores are far enough from 0 that a missing cap or derivative shows.
TEST(Attention, CapsScores) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const int64_t window : {0, 5, 13}) {
      for (const int64_t num_kv_heads : {4, 1}) {
        SCOPED_TRACE(::testing::Message() << "window " << window << " KV heads " << num_kv_heads);
        expect_definition({.algorithm = algorithm,
                           .kind = kind,
                           .num_kv_heads = num_kv_heads,
                           .batch = 2,
                           .documents = {{5}, {}},
                           .window = window,
                           .softcap = 0.7});
      }
    }
  });
}

TEST(Attention, WindowsAndCapsKeepTheirPrecisionInEachDtype) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const DtypeTolerance& precision :
         {DtypeTolerance{at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}}) {
      for (const double softcap : {0.0, 0.7}) {
        SCOPED_TRACE(::testing::Message() << precision.dtype << " softcap " << softcap);
        expect_definition({.algorithm = algorithm,
                           .kind = kind,
                           .batch = 2,
                           .documents = {{5}, {}},
                           .precision = precision,
                           .window = 5,
                           .softcap = softcap});
      }
    }
  });
}

TEST(Attention, HasSinks) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const int64_t window : {0, 1, 5, 13}) {
      for (const int64_t num_kv_heads : {4, 1}) {
        for (const Documents& documents : {Documents{}, Documents{{5}, {}}}) {
          SCOPED_TRACE(::testing::Message() << "window " << window << " KV heads " << num_kv_heads);
          Case c{
              .algorithm = algorithm, .kind = kind, .num_kv_heads = num_kv_heads, .batch = 2, .documents = documents};
          c.window = window, c.sinks = true;
          expect_definition(c);
        }
      }
    }
    for (const DtypeTolerance& precision :
         {DtypeTolerance{at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}}) {
      SCOPED_TRACE(precision.dtype);
      Case c{.algorithm = algorithm, .kind = kind, .batch = 2, .precision = precision, .window = 5};
      c.sinks = true;
      expect_definition(c);
      c.softcap = 0.7;
      expect_definition(c);
    }
  });
}

TEST(Attention, FrozenSinksCountToo) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    const SequenceLayout layout = layout_of(kind);
    const at::Tensor sinks = random_tensor({4}, 3);
    std::vector<at::Tensor> gradients;
    for (const bool frozen : {false, true}) {
      AttentionRule rule{kScale};
      rule.sinks = sinks.clone().set_requires_grad(!frozen);
      const at::Tensor local = layout.take(random_tensor({2, sequence_length(), 8, kHeadDim}, 1), 1).clone();
      run(split_heads(local.set_requires_grad(true), 4, 2), layout, algorithm, rule).pow(2).sum().backward();
      gradients.push_back(local.grad());
      EXPECT_EQ(rule.sinks.grad().defined(), !frozen);
    }
    EXPECT_TRUE(gradients[0].equal(gradients[1]));
  });
}

TEST(Attention, TakesGradientsOfAnyStrides) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    const SequenceLayout layout = layout_of(kind);
    std::vector<at::Tensor> gradients;
    for (const bool expanded : {false, true}) {
      const at::Tensor local = layout.take(random_tensor({2, sequence_length(), 8, kHeadDim}, 1), 1).clone();
      const at::Tensor out = run(split_heads(local.set_requires_grad(true), 4, 2), layout, algorithm);
      expanded ? out.sum().backward() : out.backward(at::ones_like(out));
      gradients.push_back(local.grad());
    }
    EXPECT_TRUE(gradients[0].equal(gradients[1]));
  });
}

TEST(Attention, WithoutGradientsIsTheSame) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    const SequenceLayout layout = layout_of(kind);
    const at::Tensor local = layout.take(random_tensor({1, sequence_length(), 8, kHeadDim}, 1), 1).clone();
    const at::Tensor expected = run(split_heads(local.set_requires_grad(true), 4, 2), layout, algorithm);
    EXPECT_TRUE(expected.requires_grad());
    const at::NoGradGuard no_grad;
    const at::Tensor found = run(split_heads(local, 4, 2), layout, algorithm);
    EXPECT_FALSE(found.requires_grad());
    EXPECT_TRUE(found.equal(expected));
  });
}

TEST(Attention, IsDifferentiableOnce) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const Documents& documents : {Documents{}, Documents{{3}}}) {
      const SequenceLayout layout = layout_of(kind).with_documents(documents);
      const at::Tensor local = layout.take(random_tensor({1, sequence_length(), 8, kHeadDim}, 1), 1).clone();
      const at::Tensor out = run(split_heads(local.set_requires_grad(true), 4, 2), layout, algorithm);
      const auto second = [&] {
        const at::Tensor first = torch::autograd::grad({out.pow(2).sum()}, {local}, {}, true, /*create_graph=*/true)[0];
        first.sum().backward();
      };
      EXPECT_THROW(second(), std::exception) << "a second derivative must not be silently wrong";
    }
  });
}

TEST(Attention, UlyssesRefusesHeadsThatItCannotShareOut) {
  if (world().size() == 1) GTEST_SKIP() << "one rank shares nothing out";
  const SequenceLayout layout = layout_of(kContiguous);
  const at::Tensor q = at::zeros({1, 3, 12, 8});
  try {
    run({q, q, q}, layout, ContextAlgorithm::Ulysses);
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("divide 3 query heads"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(world().coordinate_text()), std::string::npos) << error.what();
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const SequenceLayout layout = layout_of(kZigZag);
  const auto tensor = [](int64_t batch, int64_t heads, int64_t length, int64_t dim, at::ScalarType dtype = at::kFloat) {
    return at::zeros({batch, heads, length, dim}, dtype);
  };
  const auto refusal = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& with) {
    try {
      run({q, k, v}, with, ContextAlgorithm::Ring);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const at::Tensor q = tensor(2, 4, 12, 8), k = tensor(2, 2, 12, 8);
  const auto expect_refused = [&](const std::string& problem, const at::Tensor& a, const at::Tensor& b,
                                  const at::Tensor& c, const SequenceLayout& with) {
    EXPECT_NE(refusal(a, b, c, with).find(problem), std::string::npos) << refusal(a, b, c, with);
  };
  const int other = world().size() + 1;
  expect_refused("belongs to another group", q, k, k, SequenceLayout(kContiguous, 12 * other, other, 0));
  expect_refused("four dims", q, k[0], k[0], layout);
  expect_refused("k and v differ", q, k, tensor(2, 1, 12, 8), layout);
  expect_refused("batch or head dim", q, tensor(1, 2, 12, 8), tensor(1, 2, 12, 8), layout);
  expect_refused("batch or head dim", q, tensor(2, 2, 12, 4), tensor(2, 2, 12, 4), layout);
  expect_refused("local part of the sequence", tensor(2, 4, 11, 8), k, k, layout);
  expect_refused("not a multiple", q, tensor(2, 3, 12, 8), tensor(2, 3, 12, 8), layout);
  expect_refused("dtypes differ", q, k, k.to(at::kDouble), layout);
  expect_refused("documents for 1 sequences, the batch has 2", q, k, k, layout.with_documents({{3}}));
  for (const AttentionRule& rule : {AttentionRule{kScale, -1}, AttentionRule{kScale, 0, -1.0}}) {
    EXPECT_THROW(run({q, k, k}, layout, ContextAlgorithm::Ring, rule), std::invalid_argument);
  }
  AttentionRule two_sinks{kScale};
  two_sinks.sinks = at::zeros({2});
  EXPECT_THROW(run({q, k, k}, layout, ContextAlgorithm::Ring, two_sinks), std::invalid_argument);
  EXPECT_NE(refusal(q[0], k, k, layout).find(world().coordinate_text()), std::string::npos);
}

}  // namespace
}  // namespace meshtrain
