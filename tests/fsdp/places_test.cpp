#include "fsdp/places.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace meshtrain {
namespace {

TEST(Places, OfEqualBlocksAreAsManyAsAreInUse) {
  EXPECT_EQ(plan_places(std::vector<Tenant>(7, {10}), 0).total, 10);
  EXPECT_EQ(plan_places(std::vector<Tenant>(7, {10}), 1).total, 20);
  EXPECT_EQ(plan_places(std::vector<Tenant>(7, {10}), 3).total, 40);
  EXPECT_EQ(plan_places(std::vector<Tenant>(7, {10}), 100).total, 70);
}

TEST(Places, OfALargeEmbeddingAndHeadAreShared) {
  for (int num_blocks = 2; num_blocks < 9; ++num_blocks) {
    std::vector<Tenant> tenants(static_cast<size_t>(num_blocks), {10});
    tenants.insert(tenants.begin(), {100});
    tenants.push_back({110});
    EXPECT_EQ(plan_places(tenants, 1).total, 120) << num_blocks;
  }
}

TEST(Places, OfATenantThatStaysAreItsOwn) {
  const std::vector<Tenant> tenants = {{100, true}, {10}, {10}, {10}, {10}};
  const Places places = plan_places(tenants, 1);
  EXPECT_EQ(places.total, 120);
  for (size_t i = 1; i < tenants.size(); ++i) EXPECT_GE(places.offsets[i], 100);
}

TEST(Places, OfThoseWithoutSizeAreNoneAndTheirNeighboursMeet) {
  EXPECT_EQ(plan_places({{10}, {0}, {0}, {7}, {0}, {9}}, 1).total, 19 - 2);
  EXPECT_EQ(plan_places({{10}, {0}, {0}, {7}, {0}, {9}}, 0).total, 10);
  EXPECT_EQ(plan_places({{0}, {0}}, 1).total, 0);
}

TEST(Places, OfNeighboursAreApart) {
  const std::vector<Tenant> tenants = {{5}, {9}, {2}, {7}, {7}, {1}, {8}, {3}};
  for (int64_t reach = 0; reach < 4; ++reach) {
    const Places places = plan_places(tenants, reach);
    for (int64_t a = 0; a < 8; ++a) {
      EXPECT_LE(places.offsets[a] + tenants[a].size, places.total);
      for (int64_t b = 0; b < a; ++b) {
        const bool overlap = places.offsets[a] < places.offsets[b] + tenants[b].size &&
                             places.offsets[b] < places.offsets[a] + tenants[a].size;
        EXPECT_FALSE(overlap && std::abs(a - b) <= reach) << a << " " << b;
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain
