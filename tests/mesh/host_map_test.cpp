#include "mesh/host_map.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

TEST(HostMap, RanksOfUnequalHostsThatAlternate) {
  const HostMap map({7, 2, 7, 2, 2, 9});
  EXPECT_EQ(map.num_hosts(), 3);
  EXPECT_EQ(map.ranks_of(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(map.ranks_of(1), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(map.ranks_of(2), (std::vector<int>{5}));
  EXPECT_EQ(map.host_of(4), 1);
  EXPECT_EQ(map.local_rank(4), 2);
  EXPECT_TRUE(map.is_first_of_host(5));
  EXPECT_FALSE(map.is_first_of_host(2));
}

TEST(HostMap, OneRankIsAHost) {
  EXPECT_EQ(HostMap().num_hosts(), 1);
  EXPECT_EQ(HostMap::of(Group()).ranks_of(0), std::vector<int>{0});
}

TEST(HostMap, IsThatOfMpiOnEveryRank) {
  const int size = testing::world().size();
  EXPECT_EQ(HostMap::of(testing::world_on(testing::Hosts::Each)).num_hosts(), size);
  const HostMap halves = HostMap::of(testing::world_on(testing::Hosts::Two));
  EXPECT_EQ(halves.num_hosts(), size == 1 ? 1 : size / std::max(size / 2, 1));
  EXPECT_EQ(halves.host_of(testing::world().rank()), size == 1 ? 0 : testing::world().rank() / (size / 2));
}

}  // namespace
}  // namespace meshtrain
