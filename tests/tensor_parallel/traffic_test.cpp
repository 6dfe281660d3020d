#include <gtest/gtest.h>

#include <optional>

#include "mesh/device/aten.h"
#include "tensor_parallel/embedding.h"
#include "tensor_parallel/linear.h"
#include "tensor_parallel/linear_cross_entropy.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

// Communication of tensor parallelism, against the published volumes: per layer 8(t-1)/t x without and 10(t-1)/t x with
// sequence parallel, x = the bytes of the residual stream (Korthikanti et al., "Reducing activation recomputation in
// large transformer models", 2022), and 3 T all-reduced scalars for the loss.

namespace meshtrain::testing {
namespace {

constexpr int64_t kSentTokens = 32;
constexpr int64_t kSentHidden = 64;
constexpr int64_t kVocabulary = 97;
constexpr int64_t kNotCounted = -100;

/// The tensor-parallel layers of a small language model, without the other layers.
struct Model {
  Model(const TensorParallel& parallel, const at::TensorOptions& options)
      : tp(parallel),
        embedding(tp, "embed", kVocabulary, kSentHidden, {}, options),
        query_key_value(tp, kSentHidden, {{"q", 64}, {"k", 32}, {"v", 32}}, true, {}, options),
        output(tp, "o", 128, kSentHidden, true, {}, options),
        gate_up(tp, kSentHidden, {{"gate", 192}, {"up", 192}}, false, {}, options),
        down(tp, "down", 384, kSentHidden, false, {}, options) {
    std::map<std::string, at::Tensor> values;
    for (const Parameter* parameter : parameters()) {
      values[parameter->name] = at::zeros(parameter->global_shape, options.device());
    }
    materialize(parameters(), values, Storage::Flat);
  }

  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> all = embedding.parameters();
    for (const std::vector<Parameter*>& some :
         {query_key_value.parameters(), output.parameters(), gate_up.parameters(), down.parameters()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  at::Tensor block(const at::Tensor& x) const {
    const at::Tensor mixed = output.forward(query_key_value.forward(x));
    return down.forward(gate_up.forward(mixed));
  }

  at::Tensor loss(const at::Tensor& ids) const {
    return linear_cross_entropy(block(embedding.forward(ids)), embedding.weight(), ids, kNotCounted, tp, chunk_tokens);
  }

  TensorParallel tp;
  std::optional<int64_t> chunk_tokens;
  VocabParallelEmbedding embedding;
  ColumnParallelLinear query_key_value;
  RowParallelLinear output;
  ColumnParallelLinear gate_up;
  RowParallelLinear down;
};

class TrafficTest : public ::testing::TestWithParam<std::tuple<int, bool, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Meshes, TrafficTest,
                         ::testing::Combine(::testing::Values(1, 2, 4, 16, 32), ::testing::Bool(),
                                            ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16)));

/// Returns the bytes that a rank sends to all-reduce a buffer; to gather or scatter one takes half of them.
int64_t all_reduced(int64_t buffer_bytes, int64_t size) {
  return 2 * buffer_bytes * (size - 1) / size;
}

TEST_P(TrafficTest, OfALayerIsTheFormula) {
  const auto& [size, sequence_parallel, dtype] = GetParam();
  const DeviceMesh mesh = imagined_mesh(size - 1, size);
  const TensorParallel tp{mesh.group("tp"), sequence_parallel};
  const Model model(tp, at::TensorOptions().device(at::kMeta).dtype(dtype));
  const int64_t rows = tp.splits_rows() ? kSentTokens / size : kSentTokens;
  const at::Tensor x = at::empty({rows, kSentHidden}, at::device(at::kMeta).dtype(dtype)).requires_grad_();
  const at::Tensor y = model.block(x);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.backward(at::empty_like(y));
  EXPECT_EQ(x.grad().sizes(), x.sizes());

  const int64_t stream = kSentTokens * kSentHidden * static_cast<int64_t>(c10::elementSize(dtype));
  EXPECT_EQ(mesh.traffic().total("", "tp.linear").sent_bytes,
            (sequence_parallel ? 10 : 8) * stream * (size - 1) / size);
  EXPECT_EQ(mesh.traffic().total().sent_bytes, mesh.traffic().total("", "tp.linear").sent_bytes);
}

TEST_P(TrafficTest, OfEmbeddingHeadAndLossIsTheFormula) {
  const auto& [size, sequence_parallel, dtype] = GetParam();
  const DeviceMesh mesh = imagined_mesh(size - 1, size);
  const TensorParallel tp{mesh.group("tp"), sequence_parallel};
  const Model model(tp, at::TensorOptions().device(at::kMeta).dtype(dtype));
  const at::Tensor loss = model.loss(at::empty({kSentTokens}, at::device(at::kMeta).dtype(at::kLong)));
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_EQ(loss.sizes(), at::IntArrayRef{});
  EXPECT_EQ(loss.scalar_type(), wide);
  loss.backward();

  const int64_t stream = kSentTokens * kSentHidden * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t scalars = 3 * kSentTokens * static_cast<int64_t>(c10::elementSize(wide));
  EXPECT_EQ(mesh.traffic().total("", "tp.embedding").sent_bytes, all_reduced(stream, size));
  EXPECT_EQ(mesh.traffic().total("", "tp.cross_entropy").sent_bytes, all_reduced(scalars, size));
  EXPECT_EQ(mesh.traffic().total("", "tp.cross_entropy").calls, size == 1 ? 0 : 2);
  // The head: an all-reduce of the gradient; under sequence parallel a gather and a scatter instead.
  const int64_t block = (sequence_parallel ? 10 : 8) * stream * (size - 1) / size;
  const int64_t head = 2 * stream * (size - 1) / size;
  EXPECT_EQ(mesh.traffic().total("", "tp.linear").sent_bytes, block + head);
}

TEST(Traffic, OfALossInChunksIsTheSameInMoreCalls) {
  const DeviceMesh mesh = imagined_mesh(1, 4);
  for (const bool sequence_parallel : {false, true}) {
    Model model({mesh.group("tp"), sequence_parallel}, at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
    const auto traffic_of = [&](std::optional<int64_t> chunk_tokens) {
      mesh.traffic().clear();
      model.chunk_tokens = chunk_tokens;
      model.loss(at::empty({kSentTokens}, at::device(at::kMeta).dtype(at::kLong))).backward();
      return std::pair(mesh.traffic().total("", "tp.cross_entropy"), mesh.traffic().total("", "tp.linear"));
    };
    const auto [full_statistics, full_head] = traffic_of(std::nullopt);
    const auto [statistics, head] = traffic_of(5);  // of 32
    EXPECT_EQ(statistics.sent_bytes, full_statistics.sent_bytes);
    EXPECT_EQ(full_statistics.calls, 2);
    EXPECT_EQ(statistics.calls, 2 * 7);
    EXPECT_EQ(head.sent_bytes, full_head.sent_bytes);
    EXPECT_EQ(head.calls, full_head.calls);
  }
}

TEST(Traffic, OfRanksThatAreThereIsTheSame) {
  const DeviceMesh mesh(MeshLayout({{"tp", world().size()}}), world());
  for (const bool sequence_parallel : {false, true}) {
    mesh.traffic().clear();
    const TensorParallel tp{mesh.group("tp"), sequence_parallel};
    const Model model(tp, at::TensorOptions().dtype(at::kDouble));
    model.loss(at::arange(kSentTokens)).backward();
    const int64_t stream = kSentTokens * kSentHidden * 8, t = world().size();
    EXPECT_EQ(mesh.traffic().total("", "tp.linear").sent_bytes, (sequence_parallel ? 12 : 10) * stream * (t - 1) / t);
    EXPECT_EQ(mesh.traffic().total("", "tp.embedding").sent_bytes, all_reduced(stream, t));
    EXPECT_EQ(mesh.traffic().total("", "tp.cross_entropy").sent_bytes, all_reduced(3 * kSentTokens * 8, t));
  }
}

}  // namespace
}  // namespace meshtrain::testing
