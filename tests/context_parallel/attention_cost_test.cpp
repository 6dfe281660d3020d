// What attention costs: kernel calls, copies, and what goes over the wire.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <numeric>

#include "context_parallel/attention.h"
#include "mesh/backends/dry_run.h"
#include "mesh/device_mesh.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;
using testing::split_heads;
using testing::world;

constexpr auto kZigZag = SequenceLayout::Kind::ZigZag;

/// Counts calls of kernels and of operators that move data, from construction to destruction.
class OperatorCounter {
 public:
  OperatorCounter() {
    attention_calls = copies = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounter() { at::removeCallback(handle_); }
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  static inline std::atomic<int> attention_calls = 0;
  static inline std::atomic<int> copies = 0;

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    const std::string name = function.name();
    if (name.starts_with("aten::_scaled_dot_product")) ++attention_calls;
    if (name == "aten::copy_" || name == "aten::cat" || name == "aten::clone" || name == "aten::add_") ++copies;
    return nullptr;
  }

  at::CallbackHandle handle_;
};

at::Tensor run(const at::Tensor& fused, const SequenceLayout& layout, const Group& group) {
  const testing::Heads heads = split_heads(fused, 4, 2);
  return attention(heads.q, heads.k, heads.v, layout, group, ContextAlgorithm::AllGather, 0.25);
}

TEST(AttentionCost, OneRankIsOneKernelCallEachWay) {
  const testing::Heads leaves = split_heads(random_tensor({3, 10, 8, 8}, 1), 4, 2);
  for (const at::Tensor& leaf : {leaves.q, leaves.k, leaves.v}) leaf.set_requires_grad(true);
  const at::Tensor grad = random_tensor({3, 10, 4, 8}, 2).transpose(1, 2);
  at::Tensor out;
  {
    const OperatorCounter counter;
    out =
        attention(leaves.q, leaves.k, leaves.v, SequenceLayout::whole(10), Group(), ContextAlgorithm::AllGather, 0.25);
    EXPECT_EQ(counter.attention_calls, 1);
    EXPECT_EQ(counter.copies, 0);
  }
  const OperatorCounter counter;
  torch::autograd::grad({out}, {leaves.q, leaves.k, leaves.v}, {grad});
  EXPECT_EQ(counter.attention_calls, 1);
  EXPECT_EQ(counter.copies, 0);
}

TEST(AttentionCost, SequencesWithEqualDocumentsShareKernelCalls) {
  const at::Tensor fused = random_tensor({4, 10, 8, 8}, 1);
  const SequenceLayout layout = SequenceLayout::whole(10);
  {
    const OperatorCounter counter;
    run(fused, layout.with_documents({{5}, {5}, {5}, {5}}), Group());
    EXPECT_EQ(counter.attention_calls, 2);
  }
  const OperatorCounter counter;
  run(fused, layout.with_documents({{5}, {4}, {5}, {}}), Group());
  EXPECT_EQ(counter.attention_calls, 7);
}

TEST(AttentionCost, KeysAndValuesTravelOnceWithTheirOwnHeads) {
  const int ranks = world().size();
  const DeviceMesh mesh(MeshLayout({{"cp", ranks}}), world());
  const SequenceLayout layout(kZigZag, 12 * ranks, ranks, world().rank());
  const at::Tensor local = layout.take(random_tensor({3, 12 * ranks, 8, 8}, 1, at::kBFloat16), 1).clone();
  const at::Tensor out = run(local.set_requires_grad(true), layout, mesh.group("cp"));

  const int64_t elements = 3 * 12 * ranks * 2 * 2 * 8;  // B S (k, v) K D
  const int64_t calls = ranks == 1 ? 0 : 1;
  const auto total = [&] { return mesh.traffic().total("cp", "cp.attention"); };
  EXPECT_EQ(total().calls, calls);
  EXPECT_EQ(total().buffer_bytes, calls * 2 * elements);

  mesh.traffic().clear();
  out.backward(at::ones_like(out));  // gathered again, not kept; gradients in fp32
  EXPECT_EQ(total().calls, 2 * calls);
  EXPECT_EQ(total().buffer_bytes, calls * (2 + 4) * elements);
}

TEST(AttentionCost, DryRunOnManyRanks) {
  const int ranks = 1024;
  std::vector<int64_t> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  for (const int rank : {0, 511, 1023}) {
    const Group group(dry_run_backend(rank, ranks), "cp", members, "rank " + std::to_string(rank));
    const SequenceLayout layout = SequenceLayout(kZigZag, 8 * ranks, ranks, rank).with_documents({{}, {100}});
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      const at::Tensor local = at::empty({2, 8, 8, 16}, at::TensorOptions(at::kMeta).dtype(dtype));
      const at::Tensor out = run(local.set_requires_grad(true), layout, group);
      EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 4, 8, 16}));
      EXPECT_EQ(out.scalar_type(), dtype);
      out.backward(at::ones_like(out));
      EXPECT_EQ(local.grad().sizes(), local.sizes());
    }
  }
}

}  // namespace
}  // namespace meshtrain
