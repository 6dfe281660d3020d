#include "mesh/replica_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "mesh/backends/dry_run.h"

namespace meshtrain {
namespace {

constexpr int kRanks = 48;
using Ranks = std::vector<int64_t>;

/// Returns a mesh of ranks that do not exist, as `rank` sees it.
DeviceMesh dry_mesh(const MeshLayout& layout, int64_t rank) {
  Ranks everyone(static_cast<size_t>(layout.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return {layout, Group(dry_run_backend(static_cast<int>(rank), static_cast<int>(layout.size())), "world", everyone,
                        "rank " + std::to_string(rank))};
}

/// A way to divide a model; num_shards as in ReplicaMap.
struct Division {
  std::vector<std::string> axes;
  std::optional<int64_t> num_shards;
};

/// Calls `visit` with every order of the axes of 6 x 4 x 2 ranks and every division.
template <class Visit>
void for_each_division(const Visit& visit) {
  const std::map<std::string, int64_t> sizes{{"dp", 6}, {"cp", 4}, {"tp", 2}};
  std::vector<std::string> order{"cp", "dp", "tp"};
  do {
    const MeshLayout layout = MeshLayout::fit(sizes, order, kRanks);
    for (const std::vector<std::string>& axes : {std::vector<std::string>{"dp"}, {"dp", "cp"}}) {
      int64_t num_along = 1;
      for (const std::string& axis : axes) num_along *= layout.size(axis);
      visit(layout, Division{axes, std::nullopt});
      for (int64_t num_shards = 1; num_shards <= num_along; ++num_shards) {
        if (num_along % num_shards == 0) visit(layout, Division{axes, num_shards});
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

std::string describe(const MeshLayout& layout, const Division& division) {
  return layout.describe() + ", outermost " + layout.axes().front().name + ", over " +
         std::to_string(division.axes.size()) + " axes, shards " + std::to_string(division.num_shards.value_or(0));
}

/// Searches every rank of the group: returns the position among the ranks along `axes`, and how many before it hold the
/// same.
ReplicaMap::Part part_by_search(const MeshLayout& layout, const Division& division, int64_t rank) {
  const auto shard_of = [&](int64_t other) {
    const Ranks ranks = layout.group(division.axes, other);
    return (std::find(ranks.begin(), ranks.end(), other) - ranks.begin()) % division.num_shards.value_or(1);
  };
  ReplicaMap::Part part{layout.coordinate(rank, "tp"), shard_of(rank), 0};
  for (const int64_t other : layout.group({"dp", "cp"}, rank)) {
    if (other == rank) break;
    if (shard_of(other) == part.shard) ++part.replica;
  }
  return part;
}

TEST(ReplicaMap, FindsThePartsThatASearchFinds) {
  for_each_division([](const MeshLayout& layout, const Division& division) {
    const ReplicaMap map(layout, 0, division.axes, division.num_shards);
    ASSERT_EQ(map.size(), kRanks);
    ASSERT_EQ(map.num_tp(), 2);
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(map.part_of(rank), part_by_search(layout, division, rank))
          << describe(layout, division) << ", rank " << rank;
    }
  });
}

TEST(ReplicaMap, OneRankHoldsAndOwnsEverything) {
  const ReplicaMap map;
  EXPECT_EQ(map.size(), 1);
  EXPECT_EQ(map.part(), (ReplicaMap::Part{0, 0, 0}));
  EXPECT_EQ(map.owned(10, 3).offset, 0);
  EXPECT_EQ(map.owned(10, 3).numel, 10);
  EXPECT_TRUE(map.cut_axes().empty());
}

// The first elements of each shard belong to parameters that tp does not cut.
TEST(ReplicaMap, EveryElementHasOneOwner) {
  constexpr int64_t kNumel = 29, kFull = 11;
  for_each_division([](const MeshLayout& layout, const Division& division) {
    std::map<std::tuple<int64_t, int64_t, int64_t>, int> owners;  // by tp (0 where it does not cut), shard, element
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const ReplicaMap map(layout, rank, division.axes, division.num_shards);
      const Range owned = map.owned(kNumel, kFull);
      for (int64_t i = owned.offset; i < owned.offset + owned.numel; ++i) {
        ++owners[{i < kFull ? 0 : map.part().tp, map.part().shard, i}];
      }
    }
    const int64_t num_shards = division.num_shards.value_or(1);
    ASSERT_EQ(static_cast<int64_t>(owners.size()), num_shards * (kFull + 2 * (kNumel - kFull)));
    for (const auto& [element, count] : owners) ASSERT_EQ(count, 1) << describe(layout, division);
  });
}

/// Returns how often each rank's value counts in the result of `rank` after a sum within groups of `first`, then of
/// `second`.
template <class First, class Second>
std::map<int64_t, int> counted(int64_t rank, const First& first, const Second& second) {
  std::map<int64_t, int> counts;
  for (const int64_t middle : second(rank)) {
    for (const int64_t from : first(middle)) ++counts[from];
  }
  return counts;
}

// The data-parallel sums and the remaining sums together count each rank's gradient once: over dp x cp, and over tp too
// when it is partial. Ranks that hold the same data agree on that.
TEST(ReplicaMap, SumsCountEveryRankOnce) {
  for_each_division([](const MeshLayout& layout, const Division& division) {
    std::vector<ReplicaMap> maps;
    for (int rank = 0; rank < kRanks; ++rank) {
      maps.emplace_back(dry_mesh(layout, rank), division.axes, division.num_shards);
    }
    const auto map_of = [&](int64_t rank) -> const ReplicaMap& { return maps[static_cast<size_t>(rank)]; };
    const auto inside = [&](int64_t rank) {
      const ReplicaMap& map = map_of(rank);
      return division.num_shards ? map.shards().ranks() : map.full_replicas().ranks();
    };
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const ReplicaMap& map = map_of(rank);
      std::map<int64_t, int> tokens, everyone;
      for (const int64_t other : layout.group({"dp", "cp"}, rank)) tokens[other] = 1;
      for (int64_t other = 0; other < kRanks; ++other) everyone[other] = 1;
      ASSERT_EQ(counted(rank, inside, [&](int64_t own) { return map_of(own).remaining().ranks(); }), tokens)
          << describe(layout, division) << ", rank " << rank;
      ASSERT_EQ(counted(rank, inside, [&](int64_t own) { return map_of(own).remaining_partial().ranks(); }), everyone)
          << describe(layout, division) << ", rank " << rank;
      ASSERT_EQ(map.parts().ranks(), layout.group({"tp"}, rank));
      ASSERT_EQ(map.tokens().ranks(), layout.group({"dp", "cp"}, rank));
      Ranks holders;
      for (int64_t other = 0; other < kRanks; ++other) {
        const ReplicaMap::Part part = map.part_of(other);
        if (part.tp == map.part().tp && part.shard == map.part().shard) holders.push_back(other);
      }
      std::sort(holders.begin(), holders.end(),
                [&](int64_t a, int64_t b) { return map.part_of(a).replica < map.part_of(b).replica; });
      ASSERT_EQ(map.replicas().ranks(), holders) << describe(layout, division) << ", rank " << rank;
      const Ranks shards = map.shards().ranks();
      ASSERT_EQ(static_cast<int64_t>(shards.size()), division.num_shards.value_or(1));
      for (size_t i = 0; i < shards.size(); ++i) ASSERT_EQ(map.part_of(shards[i]).shard, static_cast<int64_t>(i));
    }
  });
}

// A pipeline's stage divides its parameters among its own ranks, which messages name by their ranks in the world.
TEST(ReplicaMap, OfAPartOfAMeshIsThatOfAMeshOfItsAxes) {
  const MeshLayout of_stage({{"dp", 6}, {"cp", 2}, {"tp", 2}});
  for (const MeshLayout& layout : {MeshLayout({{"pp", 2}, {"dp", 6}, {"cp", 2}, {"tp", 2}}),
                                   MeshLayout({{"dp", 6}, {"cp", 2}, {"pp", 2}, {"tp", 2}})}) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const DeviceMesh mesh = dry_mesh(layout, rank), stage = mesh.part({"dp", "cp", "tp"});
      const ReplicaMap part(stage, {"dp"}, 3), alone(dry_mesh(of_stage, stage.rank()), {"dp"}, 3);
      EXPECT_EQ(part.part(), alone.part());
      const auto in_world = [&](const Group& group) {
        Ranks ranks;
        for (const int64_t each : group.ranks()) ranks.push_back(stage.world().ranks()[static_cast<size_t>(each)]);
        return ranks;
      };
      ASSERT_EQ(part.shards().ranks(), in_world(alone.shards())) << rank;
      ASSERT_EQ(part.remaining().ranks(), in_world(alone.remaining())) << rank;
      ASSERT_EQ(part.remaining_partial().ranks(), in_world(alone.remaining_partial())) << rank;
    }
  }
}

TEST(ReplicaMap, AxesHaveTheRolesThatTheyAreGiven) {
  const MeshLayout experts({{"edp", 4}, {"ep", 3}}), dense({{"dp", 4}, {"tp", 3}});
  const ReplicaRoles roles{"ep", {"edp"}};
  for (int64_t rank = 0; rank < dense.size(); ++rank) {
    const ReplicaMap map(experts, rank, {"edp"}, 2, roles), same(dense, rank, {"dp"}, 2);
    EXPECT_EQ(map.part(), same.part());
    EXPECT_EQ(map.owned(29, 11).offset, same.owned(29, 11).offset);
    EXPECT_EQ(map.owned(29, 11).numel, same.owned(29, 11).numel);
    const DeviceMesh mesh = dry_mesh(experts, rank), of_dense = dry_mesh(dense, rank);
    for (const std::optional<int64_t> num_shards : {std::optional<int64_t>(), {2}, {4}}) {
      const ReplicaMap own(mesh, {"edp"}, num_shards, roles), other(of_dense, {"dp"}, num_shards);
      EXPECT_EQ(own.parts().ranks(), other.parts().ranks());
      EXPECT_EQ(own.tokens().ranks(), other.tokens().ranks());
      EXPECT_EQ(own.shards().ranks(), other.shards().ranks());
      EXPECT_EQ(own.remaining().ranks(), other.remaining().ranks());
      EXPECT_EQ(own.remaining_partial().ranks(), other.remaining_partial().ranks());
    }
  }
}

TEST(ReplicaMap, OfARanksOwnPartHasTheRanksThatHoldIt) {
  for_each_division([](const MeshLayout& layout, const Division& division) {
    for (int64_t rank = 0; rank < kRanks; rank += 7) {
      const ReplicaMap map(dry_mesh(layout, rank), division.axes, division.num_shards), own = map.own_part();
      ASSERT_EQ(own.size(), map.tokens().size());
      ASSERT_EQ(own.num_tp(), 1);
      ASSERT_EQ(own.world().ranks(), map.tokens().ranks());
      ASSERT_EQ(own.part(), (ReplicaMap::Part{0, map.part().shard, map.part().replica}));
      for (int64_t other = 0; other < own.size(); ++other) {
        ReplicaMap::Part part = map.part_of(own.world().ranks()[static_cast<size_t>(other)]);
        part.tp = 0;
        ASSERT_EQ(own.part_of(other), part) << describe(layout, division) << ", rank " << rank;
      }
    }
  });
}

TEST(ReplicaMap, RefusesAxesWithoutTheRoleOfTokens) {
  const MeshLayout layout({{"edp", 1}, {"dp", 2}, {"cp", 2}, {"tp", 3}});
  EXPECT_THROW(ReplicaMap(layout, 0, {"edp"}, 2), std::invalid_argument);
  EXPECT_THROW(ReplicaMap(layout, 0, {"tp"}, 3), std::invalid_argument);
  EXPECT_THROW(ReplicaMap(layout, 0, {"dp"}, 2, {"tp", {"edp", "dp", "cp"}}), std::invalid_argument);
}

TEST(ReplicaMap, RefusesRanksWithoutARole) {
  const MeshLayout staged({{"pp", 2}, {"dp", 3}}), one_stage({{"pp", 1}, {"dp", 3}});
  for (const std::optional<int64_t> num_shards : {std::optional<int64_t>(), {3}}) {
    EXPECT_THROW(ReplicaMap(staged, 0, {"dp"}, num_shards), std::invalid_argument);
    EXPECT_THROW(ReplicaMap(dry_mesh(staged, 0), {"dp"}, num_shards), std::invalid_argument);
    EXPECT_NO_THROW(ReplicaMap(one_stage, 0, {"dp"}, num_shards));
  }
}

// Shards over all ranks need no new groups.
TEST(ReplicaMap, TakesTheMeshsGroupsWhereTheyAreTheSame) {
  const MeshLayout layout({{"dp", 6}, {"cp", 4}, {"tp", 2}});
  const DeviceMesh mesh = dry_mesh(layout, 7);
  const ReplicaMap full(mesh, {"dp"}, std::nullopt), cut(mesh, {"dp"}, 6), both(mesh, {"dp", "cp"}, 24);
  EXPECT_EQ(full.full_replicas().name(), "dp");
  EXPECT_EQ(full.shards().size(), 1);
  EXPECT_EQ(full.remaining().name(), "cp");
  EXPECT_EQ(full.remaining_partial().name(), "cp_tp");
  EXPECT_TRUE(full.cut_axes().empty());
  EXPECT_EQ(cut.shards().name(), "dp");
  EXPECT_EQ(cut.full_replicas().size(), 1);
  EXPECT_EQ(cut.cut_axes(), std::vector<std::string>{"dp"});
  EXPECT_EQ(both.shards().name(), "dp_cp");
  EXPECT_EQ(both.remaining().size(), 1);
  EXPECT_EQ(both.remaining_partial().name(), "tp");
}

}  // namespace
}  // namespace meshtrain
