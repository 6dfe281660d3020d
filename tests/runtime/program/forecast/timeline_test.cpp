#include "runtime/program/forecast/timeline.h"

#include <gtest/gtest.h>

#include "context_parallel/gpu_attention.h"
#include "context_parallel/host_attention.h"
#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/device/copy_stream.h"
#include "mesh/group.h"
#include "tensor_parallel/products/grouped_product.h"

namespace meshtrain {
namespace {

at::Tensor meta(std::vector<int64_t> sizes) {
  return at::empty(sizes, at::TensorOptions(at::kMeta));
}

template <class Event>
std::vector<Event> events_of(const Timeline& timeline) {
  std::vector<Event> found;
  for (const Timeline::Event& event : timeline.events) {
    if (const auto* const each = std::get_if<Event>(&event)) found.push_back(*each);
  }
  return found;
}

TEST(TimelineRecorder, KnowsTheWorkOfProducts) {
  TimelineRecorder recorder(false);
  const at::Tensor a = meta({6, 4}), b = meta({8, 4});
  recorder.restart();
  at::mm(a, b.t());
  at::addmm(meta({6, 8}), a, b.t());
  const std::vector<OperatorCall> calls = events_of<OperatorCall>(recorder.take());
  ASSERT_EQ(calls.size(), 2u) << "views and allocations compute nothing";
  for (const OperatorCall& call : calls) {
    EXPECT_EQ(call.kind, OperatorCall::Kind::Product);
    EXPECT_EQ(call.flops, 2 * 6 * 4 * 8);
    EXPECT_EQ(call.product, (std::array<int64_t, 4>{1, 6, 8, 4}));
  }
  EXPECT_EQ(calls[0].bytes, 4 * (24 + 32 + 48));
}

TEST(TimelineRecorder, GroupsOfEqualSizeAreOneCallForAll) {
  TimelineRecorder recorder(false);
  const at::Tensor x = meta({7, 4}), w = meta({4, 8, 4});
  recorder.restart();
  grouped_product(x, w, {0, 2, 4, 5, 7});
  const std::vector<OperatorCall> calls = events_of<OperatorCall>(recorder.take());
  ASSERT_EQ(calls.size(), 2u);
  double flops = 0;
  for (const OperatorCall& call : calls) flops += static_cast<double>(call.times) * call.flops;
  EXPECT_EQ(flops, 2 * 7 * 4 * 8);
  EXPECT_EQ(calls[1].times, 3) << "of two rows";
}

TEST(TimelineRecorder, CountsAnOperatorOnceHoweverItIsMade) {
  TimelineRecorder recorder(false);
  const at::Tensor x = meta({10, 10});
  recorder.restart();
  at::linear(x, x);       // made of t and mm
  x.to(at::kBFloat16);    // made of _to_copy and copy_
  at::Tensor(x).add_(x);  // reads twice, writes once
  const std::vector<OperatorCall> calls = events_of<OperatorCall>(recorder.take());
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].kind, OperatorCall::Kind::Product);
  EXPECT_EQ(calls[1].bytes, 100 * (4 + 2));
  EXPECT_EQ(calls[2].bytes, 100 * (4 + 4));
}

TEST(TimelineRecorder, CausalAttentionHasHalfOfThePairs) {
  TimelineRecorder recorder(false);
  const at::Tensor q = meta({1, 4, 32, 8}), k = meta({1, 2, 32, 8});
  recorder.restart();
  for (const bool causal : {false, true}) at::_scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, causal);
  for (const bool causal : {false, true}) {
    host_attention_backward(q, q, k, k, host_attention(q, k, k, causal, 1), causal, 1);
  }
  std::vector<OperatorCall> calls = events_of<OperatorCall>(recorder.take());
  std::erase_if(calls, [](const OperatorCall& call) { return call.kind != OperatorCall::Kind::Attention; });
  ASSERT_EQ(calls.size(), 6u);
  const double all = 2 * 2 * 4 * 32 * 32 * 8;
  const std::vector<double> expected{all, all / 2, all, all * 5 / 2, all / 2, all * 5 / 4};
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i].flops, expected[i]) << i;
}

TEST(TimelineRecorder, WindowsHaveFewerPairs) {
  TimelineRecorder recorder(false);
  const at::Tensor q = meta({1, 4, 32, 8}), k = meta({1, 2, 32, 8});
  recorder.restart();
  for (const int64_t window : {0, 8, 32}) {
    const AttentionRule rule{.scale = 1, .window = window};
    const AttentionResult attended = attend_on_gpu(q, k, k, /*causal=*/true, rule);
    attend_backward_on_gpu(q, q, k, k, attended, /*causal=*/true, rule);
  }
  std::vector<double> flops;
  for (const OperatorCall& call : events_of<OperatorCall>(recorder.take())) {
    if (call.kind == OperatorCall::Kind::Attention) flops.push_back(call.flops);
  }
  ASSERT_EQ(flops.size(), 6u);
  for (const size_t pass : {0, 1}) {
    EXPECT_DOUBLE_EQ(flops[2 + pass], flops[pass] * (8 - 1) / 16) << "a query sees 8 keys, the first ones fewer";
    EXPECT_DOUBLE_EQ(flops[4 + pass], flops[pass]);
  }
}

TEST(TimelineRecorder, KeepsCollectivesAndTheirWaitsInOrder) {
  TimelineRecorder recorder(false);
  const Group world(recorder.watch(dry_run_backend(1, 4)), "world", {0, 1, 2, 3}, "rank 1");
  recorder.restart();
  at::Tensor sum = meta({16}), full = meta({64});
  const Work first = world.all_reduce(sum);
  world.all_gather(full, sum).wait();
  sum.add(1);
  first.wait();
  const Timeline timeline = recorder.take();
  ASSERT_EQ(timeline.events.size(), 5u);
  const std::vector<CollectiveCall> calls = events_of<CollectiveCall>(timeline);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].kind, Collective::Kind::AllReduce);
  EXPECT_EQ(calls[0].size, 4);
  EXPECT_EQ(calls[0].buffer_bytes, 64);
  EXPECT_EQ(calls[1].buffer_bytes, 256);
  EXPECT_EQ(std::get<CollectiveWait>(timeline.events[2]).collective, 1u);
  EXPECT_TRUE(std::holds_alternative<OperatorCall>(timeline.events[3]));
  EXPECT_EQ(std::get<CollectiveWait>(timeline.events[4]).collective, 0u);
}

TEST(TimelineRecorder, KeepsCopiesTheirOrderAndTheirWaits) {
  TimelineRecorder recorder(false);
  const Group world(recorder.watch(dry_run_backend(1, 4)), "world", {0, 1, 2, 3}, "rank 1");
  CopyStream stream(at::kMeta), other(at::kMeta);
  const at::Tensor device = meta({16}), host = meta({16});
  at::Tensor full = meta({64});
  stream.copy(device, host, CopyDirection::ToDevice);
  const StreamMark early = stream.mark();
  recorder.restart();
  stream.copy(device, host, CopyDirection::ToDevice);
  const StreamMark first = stream.mark();
  other.copy(host, device, CopyDirection::ToHost);
  stream.copy(host, device, CopyDirection::ToHost);
  stream.then([&] { world.all_gather(full, device); });
  world.all_gather(full, device);
  early.wait();
  first.wait();
  const Timeline timeline = recorder.take();
  ASSERT_EQ(timeline.events.size(), 6u) << "a copy is no operator, and what was before the step does not count";
  const std::vector<CopyCall> copies = events_of<CopyCall>(timeline);
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0].direction, CopyDirection::ToDevice);
  EXPECT_EQ(copies[0].bytes, 64);
  EXPECT_EQ(copies[0].after, std::nullopt);
  EXPECT_EQ(copies[1].direction, CopyDirection::ToHost);
  EXPECT_EQ(copies[1].after, std::nullopt);
  EXPECT_EQ(copies[2].after, 0u);
  const std::vector<CollectiveCall> gathers = events_of<CollectiveCall>(timeline);
  ASSERT_EQ(gathers.size(), 2u);
  EXPECT_EQ(gathers[0].after_copy, 2u);
  EXPECT_EQ(gathers[1].after_copy, std::nullopt);
  EXPECT_EQ(std::get<CopyWait>(timeline.events[5]).copy, 0u);
  EXPECT_EQ(stream.costs().to_device, 128);
  EXPECT_EQ(stream.costs().to_host, 64);
}

TEST(TimelineRecorder, TellsShapesApartBySignature) {
  TimelineRecorder recorder(true);
  const at::Tensor x = meta({4, 6});
  recorder.restart();
  x.add(x);
  x.add(x);
  x.t().add(x.t());
  const Timeline timeline = recorder.take();
  ASSERT_EQ(timeline.signatures.size(), 2u);
  EXPECT_EQ(timeline.signatures[0].text.rfind("aten::add.Tensor(Float 4x6, Float 4x6", 0), 0u)
      << timeline.signatures[0].text;
  EXPECT_NE(timeline.signatures[1].text.find("6x4 by 1,6"), std::string::npos) << timeline.signatures[1].text;
  EXPECT_EQ(std::get<OperatorCall>(timeline.events[1]).signature, 0);
  EXPECT_EQ(std::get<OperatorCall>(timeline.events[2]).signature, 1);
}

}  // namespace
}  // namespace meshtrain
