// Groups of a hybrid on several hosts, which are computed without the ranks.
#include "runtime/training/transformer/data_parallel.h"

#include <gtest/gtest.h>

#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/base/error.h"
#include "mesh/forwarding.h"

namespace meshtrain {
namespace {

/// A backend of ranks that do not exist, on hosts.
class OnHosts final : public ForwardingBackend {
 public:
  OnHosts(int rank, std::vector<int> hosts)
      : ForwardingBackend(dry_run_backend(rank, static_cast<int>(hosts.size()))), hosts_(std::move(hosts)) {}
  std::vector<int> hosts() const override { return hosts_; }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override { return part; }

 private:
  std::vector<int> hosts_;
};

/// Returns the world ranks that share a model with `rank`, for dp x tp ranks on these hosts.
std::vector<int64_t> sharers(int rank, int64_t tp, const std::vector<int>& hosts,
                             std::optional<int64_t> shard_size = {}) {
  const auto size = static_cast<int64_t>(hosts.size());
  std::vector<int64_t> everyone(hosts.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const ShardingChoice sharding{ShardingMode::FullShard, {"dp"}, size / tp, /*hybrid=*/true, shard_size};
  const DeviceMesh mesh(MeshLayout({{"dp", size / tp}, {"cp", 1}, {"tp", tp}}),
                        Group(std::make_shared<OnHosts>(rank, hosts), "world", everyone, ""));
  return map_replicas(sharding, mesh).dense.shards().ranks();
}

std::string refusal(int rank, int64_t tp, const std::vector<int>& hosts) {
  try {
    sharers(rank, tp, hosts);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

using Ranks = std::vector<int64_t>;

TEST(HybridOnHosts, CutsOverTheRanksOfAHost) {
  EXPECT_EQ(sharers(1, 1, {0, 0, 1, 1}), (Ranks{0, 1}));
  EXPECT_EQ(sharers(2, 1, {0, 0, 1, 1}), (Ranks{2, 3}));
  EXPECT_EQ(sharers(5, 2, {0, 0, 0, 0, 1, 1, 1, 1}), (Ranks{5, 7}));
  EXPECT_EQ(sharers(1, 1, {0, 0, 0, 0}), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(sharers(2, 2, {0, 0, 1, 1}), (Ranks{2})) << "a host has one rank of each";
  EXPECT_EQ(sharers(0, 2, {0, 1, 0, 1, 2, 3, 2, 3}), (Ranks{0, 2})) << "tp crosses hosts, a shard does not";
}

/// The error is the same on every rank.
TEST(HybridOnHosts, RefusesWhatWouldSpanHosts) {
  const std::string begin = "parallel.fsdp: hybrid_shard cuts over the ranks of a host, ";
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(refusal(rank, 1, {0, 1, 0, 1}),
              begin +
                  "but ranks of several hosts alternate here: start neighbours on one host (mpirun --map-by slot, "
                  "srun --distribution=block), or set parallel.fsdp.shard_size; some copies will then span several "
                  "hosts");
    EXPECT_EQ(
        refusal(rank, 1, {0, 0, 0, 1}),
        begin +
            "which are 1 on one and 3 on another: start the same number on each, or set parallel.fsdp.shard_size; "
            "some copies will then span several hosts");
    EXPECT_EQ(
        refusal(rank, 1, {0, 0, 0, 0, 1, 1}),
        begin +
            "which are 2 on one and 4 on another: start the same number on each, or set parallel.fsdp.shard_size: 2, "
            "the largest whose copies have one host each");
  }
  EXPECT_EQ(sharers(5, 1, {0, 0, 0, 0, 1, 1}, 2), (Ranks{4, 5}));
}

/// Returns the ranks of the world that hold the shards of the experts, and of all else, that `rank` of 8 has.
std::pair<Ranks, Ranks> shards_of(int rank, const ShardingChoice& sharding, int64_t dp, int64_t tp, int64_t ep) {
  Ranks everyone(8);
  std::iota(everyone.begin(), everyone.end(), 0);
  const DeviceMesh mesh(MeshLayout({{"dp", dp}, {"cp", 1}, {"tp", tp}}, ep),
                        Group(dry_run_backend(rank, 8), "world", everyone, ""));
  const ModelReplicas replicas = map_replicas(sharding, mesh);
  return {replicas.experts.value().shards().ranks(), replicas.dense.shards().ranks()};
}

TEST(ExpertShards, AreOnTheRanksOfACopy) {
  const ShardingChoice full{ShardingMode::FullShard, {"dp"}, 8}, four{ShardingMode::FullShard, {"dp"}, 8, true, 4},
      two{ShardingMode::FullShard, {"dp"}, 8, true, 2}, with_tp{ShardingMode::FullShard, {"dp"}, 4, true, 2};
  EXPECT_EQ(shards_of(5, full, 8, 1, 2), (std::pair(Ranks{1, 3, 5, 7}, Ranks{0, 1, 2, 3, 4, 5, 6, 7})));
  EXPECT_EQ(shards_of(5, four, 8, 1, 2), (std::pair(Ranks{5, 7}, Ranks{4, 5, 6, 7})));
  EXPECT_EQ(shards_of(5, two, 8, 1, 2), (std::pair(Ranks{5}, Ranks{4, 5}))) << "ep has all ranks of a copy";
  EXPECT_EQ(shards_of(5, two, 8, 1, 4), (std::pair(Ranks{5}, Ranks{4, 5}))) << "ep has more ranks than a copy";
  EXPECT_EQ(shards_of(5, with_tp, 4, 2, 2), (std::pair(Ranks{5, 7}, Ranks{5, 7})));
}

TEST(ExpertShards, AreThoseOfOtherParametersWithoutEp) {
  Ranks everyone(4);
  std::iota(everyone.begin(), everyone.end(), 0);
  const DeviceMesh mesh(MeshLayout({{"dp", 4}}), Group(dry_run_backend(1, 4), "world", everyone, ""));
  EXPECT_FALSE(map_replicas({ShardingMode::FullShard, {"dp"}, 4}, mesh).experts.has_value());
}

}  // namespace
}  // namespace meshtrain
