// The calls of the nccl backend, for ranks and sizes, without a GPU.
#include "mesh/backends/nccl/calls.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using CallKind = NcclCall::Kind;
using Calls = std::vector<NcclCall>;

at::Tensor meta(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kFloat));
}

TEST(NcclCalls, WholeTensorsAreOneCall) {
  using Asked = Collective::Kind;
  EXPECT_EQ(nccl_calls({.kind = Asked::AllReduce, .output = meta({3, 2}), .input = {}}, 1, 4),
            (Calls{{CallKind::AllReduce, -1, 0, 0, 6}}));
  EXPECT_EQ(nccl_calls({.kind = Asked::AllGather, .output = meta({8, 2}), .input = meta({2, 2})}, 1, 4),
            (Calls{{CallKind::AllGather, -1, 0, 0, 4}}));
  EXPECT_EQ(nccl_calls({.kind = Asked::ReduceScatter, .output = meta({2, 2}), .input = meta({8, 2})}, 1, 4),
            (Calls{{CallKind::ReduceScatter, -1, 0, 0, 4}}));
  EXPECT_EQ(nccl_calls({.kind = Asked::Broadcast, .output = meta({5}), .input = {}, .from = 2}, 1, 4),
            (Calls{{CallKind::Broadcast, 2, 0, 0, 5}}));
  EXPECT_EQ(nccl_calls({.kind = Asked::Barrier, .output = {}, .input = {}}, 1, 4), Calls{});
  EXPECT_EQ(nccl_calls({.kind = Asked::AllReduce, .output = meta({0}), .input = {}}, 1, 4), Calls{});
}

TEST(NcclCalls, ARingHopIsAReceiveAndASendAndOneToItselfACopy) {
  const Collective hop{.kind = Collective::Kind::Exchange, .output = meta({3}), .input = meta({3}), .from = 0, .to = 2};
  EXPECT_EQ(nccl_calls(hop, 1, 4), (Calls{{CallKind::Receive, 0, 0, 0, 3}, {CallKind::Send, 2, 0, 0, 3}}));
  const Collective self{
      .kind = Collective::Kind::Exchange, .output = meta({3}), .input = meta({3}), .from = 1, .to = 1};
  EXPECT_EQ(nccl_calls(self, 1, 4), (Calls{{CallKind::Copy, -1, 0, 0, 3}}));
}

TEST(NcclCalls, EqualPartsGoToTheirRanksAndTheOwnOneIsCopied) {
  const Collective all{.kind = Collective::Kind::AllToAll, .output = meta({6, 5}), .input = meta({6, 5})};
  EXPECT_EQ(nccl_calls(all, 1, 3), (Calls{{CallKind::Receive, 0, 0, 0, 10},
                                          {CallKind::Send, 0, 0, 0, 10},
                                          {CallKind::Copy, -1, 10, 10, 10},
                                          {CallKind::Receive, 2, 0, 20, 10},
                                          {CallKind::Send, 2, 20, 0, 10}}));
}

// A rank receives from another what that one sends to it, for any sizes.
TEST(NcclCalls, UnequalPartsAgreeBetweenRanksAndEmptyOnesAreLeftOut) {
  const int size = 4;
  const auto rows = [](int from, int to) { return static_cast<int64_t>((from + 2 * to) % 3); };
  std::vector<Calls> of_ranks;
  for (int rank = 0; rank < size; ++rank) {
    Collective all{.kind = Collective::Kind::AllToAll, .output = {}, .input = {}};
    int64_t in = 0, out = 0;
    for (int other = 0; other < size; ++other) {
      all.sent.push_back(rows(rank, other));
      all.received.push_back(rows(other, rank));
      in += all.sent.back();
      out += all.received.back();
    }
    all.input = meta({in, 5});
    all.output = meta({out, 5});
    of_ranks.push_back(nccl_calls(all, rank, size));
    int64_t from = 0, to = 0;
    for (int other = 0; other < size; ++other) {
      for (const NcclCall& call : of_ranks.back()) {
        const bool own = call.kind == CallKind::Copy && other == rank;
        if (call.peer != other && !own) continue;
        EXPECT_GT(call.count, 0);
        EXPECT_EQ(call.from, call.kind == CallKind::Receive ? 0 : from) << rank << " to " << other;
        EXPECT_EQ(call.to, call.kind == CallKind::Send ? 0 : to) << rank << " from " << other;
      }
      from += 5 * rows(rank, other);
      to += 5 * rows(other, rank);
    }
  }
  const auto count = [&](int rank, CallKind kind, int peer) {
    for (const NcclCall& call : of_ranks[static_cast<size_t>(rank)]) {
      if (call.kind == kind && call.peer == peer) return call.count;
    }
    return int64_t{0};
  };
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      if (a == b) continue;
      EXPECT_EQ(count(a, CallKind::Send, b), 5 * rows(a, b));
      EXPECT_EQ(count(b, CallKind::Receive, a), 5 * rows(a, b));
    }
  }
}

TEST(NcclCalls, AShardInAnotherPlaceOfTheInputIsWrittenApart) {
  const at::Tensor input = meta({4, 2});
  const auto reduce_scatter = [&](const at::Tensor& shard) {
    return Collective{.kind = Collective::Kind::ReduceScatter, .output = shard, .input = input};
  };
  EXPECT_FALSE(needs_output_apart(reduce_scatter(input.narrow(0, 1, 1)), 1));
  EXPECT_TRUE(needs_output_apart(reduce_scatter(input.narrow(0, 0, 1)), 1));
  EXPECT_FALSE(needs_output_apart(reduce_scatter(meta({1, 2})), 1));
  const at::Tensor both = meta({5, 2});  // adjacent in one storage
  EXPECT_FALSE(needs_output_apart(
      {.kind = Collective::Kind::ReduceScatter, .output = both.narrow(0, 4, 1), .input = both.narrow(0, 0, 4)}, 1));
}

TEST(NcclGroups, TwoQueuesShareTheBlocksOfOne) {
  EXPECT_EQ(2 * nccl_max_blocks({.name = "", .urgency = Urgency::Background}, true),
            nccl_max_blocks({.name = "", .urgency = Urgency::Background}, false));
  EXPECT_GT(nccl_max_blocks({.name = "", .urgency = Urgency::Background}, true), 0);
  for (const bool two_queues : {false, true}) {
    EXPECT_EQ(nccl_max_blocks({.name = "", .urgency = Urgency::Awaited}, two_queues), 0) << "as NCCL sees fit";
    EXPECT_GT(nccl_max_blocks({.name = "", .urgency = Urgency::Soon}, two_queues), 0);
    EXPECT_EQ(nccl_max_blocks({.name = "", .urgency = Urgency::Awaited, .messages_only = true}, two_queues), 2)
        << "a link";
  }
}

}  // namespace
}  // namespace meshtrain
