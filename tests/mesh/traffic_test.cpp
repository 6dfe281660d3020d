#include "mesh/traffic.h"

#include <gtest/gtest.h>

#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "mesh/instrumented.h"

namespace meshtrain {
namespace {

Group dry_world(int rank, int size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(dry_run_backend(rank, size), "world", ranks, "rank " + std::to_string(rank));
}

/// Formulas 4.0 of the reference: bytes that a rank sends, from the complete buffer of M bytes and the group's size n.
TEST(Traffic, FollowsTheBandwidthOptimalFormulas) {
  const auto ledger = std::make_shared<TrafficLedger>();
  constexpr int n = 4;
  const Group plain = dry_world(1, n);
  const Group group = Group(instrument(dry_run_backend(1, n), ledger), "tp", plain.ranks(), "rank 1");
  const at::TensorOptions meta = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  at::Tensor full = at::empty({8, 6}, meta);  // M = 96 bytes
  at::Tensor other = at::empty({8, 6}, meta);
  at::Tensor part = at::empty({2, 6}, meta);

  group.all_reduce(full);
  group.all_gather(full, part);
  group.reduce_scatter(part, full);
  group.all_to_all(other, full);
  group.exchange(other, 0, full, 2);
  group.broadcast(full, 3);
  group.barrier();

  const auto entry = [&](Collective::Kind kind) { return ledger->entries().at({"tp", "other", kind}); };
  const auto expect = [&](Collective::Kind kind, int64_t buffer, int64_t sent) {
    EXPECT_EQ(entry(kind).calls, 1) << name(kind);
    EXPECT_EQ(entry(kind).buffer_bytes, buffer) << name(kind);
    EXPECT_EQ(entry(kind).sent_bytes, sent) << name(kind);
  };
  expect(Collective::Kind::AllReduce, 96, 144);
  expect(Collective::Kind::AllGather, 96, 72);
  expect(Collective::Kind::ReduceScatter, 96, 72);
  expect(Collective::Kind::AllToAll, 96, 72);
  expect(Collective::Kind::Exchange, 96, 96);
  expect(Collective::Kind::Broadcast, 96, 96);
  expect(Collective::Kind::Barrier, 0, 0);
  EXPECT_EQ(ledger->total().calls, 7);
  EXPECT_EQ(ledger->total().sent_bytes, 144 + 3 * 72 + 2 * 96);
}

TEST(Traffic, OfPartsThatDifferIsWhatIsNotThisRanksOwn) {
  const auto ledger = std::make_shared<TrafficLedger>();
  const Group group = Group(instrument(dry_run_backend(1, 3), ledger), "tp", {0, 1, 2}, "rank 1");
  const at::TensorOptions meta = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  at::Tensor received = at::empty({5, 6}, meta);
  group.all_to_all(received, {0, 2, 3}, at::empty({7, 6}, meta), {4, 2, 1});
  const Traffic& traffic = ledger->entries().at({"tp", "other", Collective::Kind::AllToAll});
  EXPECT_EQ(traffic.buffer_bytes, 7 * 12);
  EXPECT_EQ(traffic.sent_bytes, 5 * 12);
}

TEST(Traffic, IsToldApartByGroupAndPurpose) {
  const DeviceMesh mesh(MeshLayout({{"dp", 2}, {"tp", 4}}), dry_world(3, 8));
  at::Tensor tensor = at::empty({64}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const Group linear = mesh.group("tp").with_purpose("tp.linear");
  linear.all_reduce(tensor);
  linear.all_reduce(tensor);
  mesh.group("dp").with_purpose("dp.gradients").all_reduce(tensor);
  mesh.world().all_reduce(tensor);

  const TrafficLedger& ledger = mesh.traffic();
  EXPECT_EQ(ledger.total("tp").calls, 2);
  EXPECT_EQ(ledger.total("tp", "tp.linear").sent_bytes, 2 * 2 * 3 * 256 / 4);
  EXPECT_EQ(ledger.total("tp", "other").calls, 0);
  EXPECT_EQ(ledger.total("", "dp.gradients").buffer_bytes, 256);
  EXPECT_EQ(ledger.total("world").sent_bytes, 2 * 7 * 256 / 8);
  EXPECT_EQ(ledger.total().calls, 4);
  mesh.traffic().clear();
  EXPECT_EQ(ledger.total().calls, 0);
}

TEST(Traffic, OfAPartOfAGroupIsCountedUnderTheParts) {
  const DeviceMesh mesh(MeshLayout({{"dp", 8}}), dry_world(5, 8));
  const Group replicas = mesh.group("dp").split({1, 5}, "replicas");
  const Group alone = mesh.group("dp").split({5}, "alone");
  at::Tensor tensor = at::empty({2}, at::TensorOptions(at::kFloat).device(at::kMeta));
  replicas.all_reduce(tensor);
  alone.all_reduce(tensor);
  EXPECT_EQ(mesh.traffic().total("replicas").sent_bytes, 8);
  EXPECT_EQ(mesh.traffic().total().calls, 1);
}

TEST(DryRun, StandsForAWorldOfAnySize) {
  const MeshLayout layout({{"dp", 128}, {"cp", 16}, {"tp", 8}});
  const int rank = 9001;
  const DeviceMesh mesh(layout, dry_world(rank, 16384));
  EXPECT_EQ(mesh.group("tp").size(), 8);
  EXPECT_EQ(mesh.group("tp").rank(), layout.coordinate(rank, "tp"));
  EXPECT_EQ(mesh.group({"dp", "cp"}).size(), 2048);
  EXPECT_EQ(mesh.group({"dp", "cp"}).ranks(), layout.group({"dp", "cp"}, rank));
  EXPECT_EQ(mesh.world().size(), 16384);
  at::Tensor gathered = at::empty({8, 4}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const at::Tensor shard = at::empty({1, 4}, gathered.options());
  mesh.group("tp").all_gather(gathered, shard).wait();
  EXPECT_EQ(mesh.traffic().total("tp").buffer_bytes, 128);
}

TEST(DryRun, RefusesRanksThatAreNotThere) {
  EXPECT_THROW(dry_run_backend(4, 4), std::invalid_argument);
  EXPECT_THROW(dry_run_backend(-1, 4), std::invalid_argument);
  EXPECT_THROW(dry_run_backend(0, 4)->split({1, 2}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
