// The matrix: every mesh computes what one rank computes (rule 9 of arithmetic). By default a pairwise cover, which
// MESHTRAIN_COVER_SEED=N draws anew; every cell when MESHTRAIN_FULL_MATRIX is set; with MESHTRAIN_CELLS=TEXT those
// whose line contains TEXT.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <tuple>

#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/full_run.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Returns the cells in groups that have as many variants as there are ranks, in the order in which variants first
/// appear: each rank trains the reference of one variant while the other ranks train theirs.
std::vector<std::vector<Cell>> rounds_of(const std::vector<Cell>& cells, std::map<Variant, int>& trained_by) {
  const size_t num_ranks = static_cast<size_t>(world().size());
  std::map<Variant, size_t> numbers;
  std::vector<std::vector<Cell>> rounds;
  for (const Cell& cell : cells) {
    const size_t number = numbers.try_emplace(cell.variant, numbers.size()).first->second;
    trained_by[cell.variant] = static_cast<int>(number % num_ranks);
    rounds.resize(std::max(rounds.size(), number / num_ranks + 1));
    rounds[number / num_ranks].push_back(cell);
  }
  return rounds;
}

/// Compares meshes of `cells`, or of a cover of them in a short run, with one rank.
void compare_all(std::vector<Cell> cells, const Factors& factors) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();

  const size_t num_all = cells.size();
  const uint64_t seed = cover_seed();
  if (const char* const text = std::getenv("MESHTRAIN_CELLS")) {
    std::erase_if(cells, [&](const Cell& cell) { return cell.describe().find(text) == std::string::npos; });
  } else if (!is_full_run()) {
    cells = pairwise_cover(cells, seed, factors);
  }
  if (world().rank() == 0) {
    std::cout << cells.size() << " of " << num_all << " cells, MESHTRAIN_COVER_SEED=" << seed << "\n";
  }

  std::map<Variant, int> trained_by;
  std::map<std::string, double> shares;
  std::string all_differences;
  for (const std::vector<Cell>& round : rounds_of(cells, trained_by)) {
    Reference reference;
    const auto own = std::find_if(round.begin(), round.end(),
                                  [&](const Cell& cell) { return trained_by[cell.variant] == world().rank(); });
    if (own != round.end()) reference = train_reference(recipe_of(*own, /*alone=*/true, folder.path()));
    for (const Cell& cell : round) {
      if (world().rank() == 0) std::cout << "  " << cell.describe() << std::endl;
      const std::string differences = train_and_compare(recipe_of(cell, /*alone=*/false, folder.path()), mesh_of(cell),
                                                        reference, &shares, trained_by[cell.variant]);
      if (!differences.empty()) all_differences += cell.describe() + "\n" + differences;
    }
  }
  EXPECT_EQ(all_differences, "");
  if (world().rank() != 0) return;
  std::cout << "  most of its bound that anything took:\n";
  for (const auto& [number, share] : shares) std::cout << "    " << number << " " << share << "\n";
}

TEST(Matrix, EveryMeshComputesWhatOneRankComputes) {
  compare_all(all_cells(world().size()), factors_of);
}

TEST(Matrix, EveryPipelineComputesWhatOneRankComputes) {
  if (world().size() == 1) GTEST_SKIP() << "a pipeline has several ranks";
  compare_all(pipeline_cells(world().size()), pipeline_factors_of);
}

using Pair = std::tuple<size_t, std::string, size_t, std::string>;

std::set<Pair> pairs_of(const std::vector<Cell>& cells) {
  std::set<Pair> pairs;
  for (const Cell& cell : cells) {
    const std::vector<std::string> factors = factors_of(cell);
    for (size_t a = 0; a < factors.size(); ++a) {
      for (size_t b = a + 1; b < factors.size(); ++b) pairs.emplace(a, factors[a], b, factors[b]);
    }
  }
  return pairs;
}

TEST(Matrix, ThePairwiseCoverCoversEveryPairWhateverTheSeed) {
  if (world().rank() != 0) return;
  const std::vector<Cell> cells = all_cells(world().size());
  const std::set<Pair> pairs = pairs_of(cells);
  std::set<std::string> covers;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{0xffffffff}, cover_seed()}) {
    const std::vector<Cell> cover = pairwise_cover(cells, seed);
    EXPECT_LT(cover.size(), world().size() > 1 ? cells.size() / 3 : cells.size()) << seed;
    EXPECT_TRUE(pairs_of(cover) == pairs) << "seed " << seed;
    std::string text;
    for (const Cell& cell : cover) text += cell.describe() + "\n";
    covers.insert(text);
  }
  EXPECT_EQ(covers.size(), 3u) << "another seed, another cover";
}

}  // namespace
}  // namespace meshtrain::testing
