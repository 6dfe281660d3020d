#include "runtime/optimizer/keepers.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshtrain {
namespace {

/// By looking at every rank of the group: its place among those along `axes`, and how many before it keep the same.
KeeperPlaces::Place place_by_search(const MeshLayout& layout, const std::vector<std::string>& axes, int64_t num_shards,
                                    int64_t rank) {
  const auto shard_of = [&](int64_t other) {
    const std::vector<int64_t> ranks = layout.group(axes, other);
    return (std::find(ranks.begin(), ranks.end(), other) - ranks.begin()) % num_shards;
  };
  KeeperPlaces::Place place{layout.coordinate(rank, "tp"), shard_of(rank), 0};
  for (const int64_t other : layout.group({"dp", "cp"}, rank)) {
    if (other == rank) break;
    if (shard_of(other) == place.shard) ++place.copy;
  }
  return place;
}

TEST(KeeperPlaces, AreThoseThatASearchFinds) {
  const std::map<std::string, int64_t> sizes{{"dp", 6}, {"cp", 4}, {"tp", 2}};
  std::vector<std::string> order{"cp", "dp", "tp"};
  do {
    const MeshLayout layout = MeshLayout::fit(sizes, order, 48);
    for (const std::vector<std::string>& axes :
         {std::vector<std::string>{"dp"}, {"cp"}, {"dp", "cp"}, std::vector<std::string>{}}) {
      int64_t num_along = 1;
      for (const std::string& axis : axes) num_along *= layout.size(axis);
      for (int64_t num_shards = 1; num_shards <= num_along; ++num_shards) {
        if (num_along % num_shards != 0) continue;
        const KeeperPlaces places(layout, axes, num_shards);
        ASSERT_EQ(places.size(), 48);
        ASSERT_EQ(places.num_tp(), 2);
        for (int64_t rank = 0; rank < 48; ++rank) {
          ASSERT_EQ(places.of(rank), place_by_search(layout, axes, num_shards, rank))
              << layout.describe() << " rank " << rank << ", " << num_shards << " shards over " << axes.size();
        }
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(KeeperPlaces, OneRankKeepsAll) {
  const KeeperPlaces places;
  EXPECT_EQ(places.size(), 1);
  EXPECT_EQ(places.of(0), (KeeperPlaces::Place{0, 0, 0}));
}

}  // namespace
}  // namespace meshtrain
