#include "mesh/backends/mpi/rank_pattern.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace meshtrain {
namespace {

constexpr int kFanOut = 16;

std::vector<int> sizes() {
  std::vector<int> sizes(64);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {100, 1000, 1024, 4095, 16381, 16384});
  return sizes;
}

/// Returns the smallest l with 16^l >= n.
int log16(int n) {
  int log = 0;
  for (int64_t power = 1; power < n; power *= kFanOut) ++log;
  return log;
}

TEST(RankTree, BringsEveryRankToTheFirstInOrder) {
  for (const int n : sizes()) {
    const RankTree tree(n, kFanOut);
    ASSERT_EQ(tree.levels(), log16(n)) << n;
    std::vector<std::vector<int>> held(static_cast<size_t>(n));  // by rank: the ranks whose values it has
    for (int rank = 0; rank < n; ++rank) held[static_cast<size_t>(rank)] = {rank};
    for (int level = 0; level < tree.levels(); ++level) {
      for (int rank = 0; rank < n; ++rank) {
        const std::vector<int> members = tree.members(rank, level);
        if (members.empty() || members.front() != rank) continue;
        for (size_t i = 1; i < members.size(); ++i) {
          ASSERT_EQ(tree.members(members[i], level), members) << "all of a run have the same idea of it";
          const std::vector<int>& other = held[static_cast<size_t>(members[i])];
          held[static_cast<size_t>(rank)].insert(held[static_cast<size_t>(rank)].end(), other.begin(), other.end());
        }
      }
    }
    std::vector<int> everyone(static_cast<size_t>(n));
    std::iota(everyone.begin(), everyone.end(), 0);
    ASSERT_EQ(held[0], everyone) << n;
  }
}

TEST(RankTree, ARankSendsLogarithmicallyManyMessages) {
  for (const int n : sizes()) {
    const RankTree tree(n, kFanOut);
    int64_t all = 0, most = 0;
    for (int rank = 0; rank < n; ++rank) {
      int64_t sent = 0;
      for (int level = 0; level < tree.levels(); ++level) {
        const std::vector<int> members = tree.members(rank, level);
        if (members.empty()) continue;
        sent += members.front() == rank ? static_cast<int64_t>(members.size()) - 1 : 1;  // down, or up
      }
      all += sent;
      most = std::max(most, sent);
    }
    EXPECT_EQ(all, 2 * (n - 1)) << n;
    EXPECT_LE(most, (kFanOut - 1) * log16(n)) << n;
  }
}

TEST(RankGrid, EveryRankTalksToThoseThatDifferInOneDigit) {
  for (const int n : sizes()) {
    const RankGrid grid(n, kFanOut);
    ASSERT_EQ(grid.stride(grid.steps()), n);
    if (n <= kFanOut) {
      ASSERT_EQ(grid.steps(), n > 1 ? 1 : 0) << "few ranks talk to each other";
    }
    for (const int rank : {0, n / 3, n - 1}) {
      std::set<int> partners;
      int sum = 0;
      for (int step = 0; step < grid.steps(); ++step) {
        sum += grid.digit(rank, step) * grid.stride(step);
        for (int digit = 0; digit < grid.radix(step); ++digit) {
          const int partner = grid.with_digit(rank, step, digit);
          ASSERT_TRUE(partner >= 0 && partner < n);
          ASSERT_EQ(grid.digit(partner, step), digit);
          ASSERT_EQ(grid.with_digit(partner, step, grid.digit(rank, step)), rank);
          if (partner != rank) partners.insert(partner);
        }
      }
      ASSERT_EQ(sum, rank);
      if (n == 16381) {
        EXPECT_EQ(partners.size(), 16380u) << "a prime";
      } else if (n > 64) {
        EXPECT_LE(static_cast<int>(partners.size()), (kFanOut - 1) * log16(n)) << n;
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain
