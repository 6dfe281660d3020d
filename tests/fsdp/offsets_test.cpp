#include "fsdp/offsets.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace meshtrain {
namespace {

TEST(Offsets, OfEqualBlocksAreAsManyAsAreInUse) {
  EXPECT_EQ(assign_offsets(std::vector<Tenant>(7, {10}), 0).total, 10);
  EXPECT_EQ(assign_offsets(std::vector<Tenant>(7, {10}), 1).total, 20);
  EXPECT_EQ(assign_offsets(std::vector<Tenant>(7, {10}), 3).total, 40);
  EXPECT_EQ(assign_offsets(std::vector<Tenant>(7, {10}), 100).total, 70);
}

TEST(Offsets, OfALargeEmbeddingAndHeadAreShared) {
  for (int num_blocks = 2; num_blocks < 9; ++num_blocks) {
    std::vector<Tenant> tenants(static_cast<size_t>(num_blocks), {10});
    tenants.insert(tenants.begin(), {100});
    tenants.push_back({110});
    EXPECT_EQ(assign_offsets(tenants, 1).total, 120) << num_blocks;
  }
}

TEST(Offsets, OfNeighboursInPairsTakeTheLargestPair) {
  // An embedding, attention and feed-forward in turn, and a head between the sizes of the two and of their sum.
  const std::vector<Tenant> tenants = {{13}, {4}, {9}, {4}, {9}, {4}, {9}, {11}};
  EXPECT_EQ(assign_offsets(tenants, 0).total, 13);
  EXPECT_EQ(assign_offsets(tenants, 1).total, 9 + 11);
  std::vector<Tenant> tied = tenants;
  tied.front().always = true;
  tied.back() = {4};
  EXPECT_EQ(assign_offsets(tied, 1).total, 13 + 9 + 4);
}

TEST(Offsets, OfTwoSizesInTurnTakeAWindowOfAnEvenNumber) {
  std::vector<Tenant> tenants;
  for (int i = 0; i < 8; ++i) tenants.insert(tenants.end(), {{4}, {9}});
  EXPECT_EQ(assign_offsets(tenants, 2).total, 2 * (4 + 9));
  EXPECT_EQ(assign_offsets(tenants, 3).total, 2 * (4 + 9));
  EXPECT_EQ(assign_offsets(tenants, 4).total, 3 * (4 + 9));
}

TEST(Offsets, OfATenantThatStaysAreItsOwn) {
  const std::vector<Tenant> tenants = {{100, true}, {10}, {10}, {10}, {10}};
  const Offsets assigned = assign_offsets(tenants, 1);
  EXPECT_EQ(assigned.total, 120);
  for (size_t i = 1; i < tenants.size(); ++i) EXPECT_GE(assigned.offsets[i], 100);
}

TEST(Offsets, OfThoseWithoutSizeAreNoneAndTheirNeighboursMeet) {
  EXPECT_EQ(assign_offsets({{10}, {0}, {0}, {7}, {0}, {9}}, 1).total, 19 - 2);
  EXPECT_EQ(assign_offsets({{10}, {0}, {0}, {7}, {0}, {9}}, 0).total, 10);
  EXPECT_EQ(assign_offsets({{0}, {0}}, 1).total, 0);
}

TEST(Offsets, OfNeighboursAreApart) {
  const std::vector<Tenant> tenants = {{5}, {9}, {2}, {7}, {7}, {1}, {8}, {3}};
  for (int64_t reach = 0; reach < 4; ++reach) {
    const Offsets assigned = assign_offsets(tenants, reach);
    for (int64_t a = 0; a < 8; ++a) {
      EXPECT_LE(assigned.offsets[a] + tenants[a].size, assigned.total);
      for (int64_t b = 0; b < a; ++b) {
        const bool overlap = assigned.offsets[a] < assigned.offsets[b] + tenants[b].size &&
                             assigned.offsets[b] < assigned.offsets[a] + tenants[a].size;
        EXPECT_FALSE(overlap && std::abs(a - b) <= reach) << a << " " << b;
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain
