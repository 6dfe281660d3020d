// The matrix: every mesh computes what one rank computes (design rule 9). A pairwise cover by default, every cell when
// MESHTRAIN_FULL_MATRIX is set.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

TEST(Matrix, EveryMeshComputesWhatOneRankComputes) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();

  std::vector<Cell> cells = all_cells(world().size());
  const size_t num_all = cells.size();
  if (std::getenv("MESHTRAIN_FULL_MATRIX") == nullptr) cells = pairwise_cover(cells, /*seed=*/2026);
  if (world().rank() == 0) std::cout << cells.size() << " of " << num_all << " cells\n";

  std::map<Variant, Reference> references;
  std::map<std::string, double> shares;
  for (const Cell& cell : cells) {
    if (world().rank() == 0) std::cout << "  " << cell.describe() << std::endl;
    if (world().rank() == 0 && references.count(cell.variant) == 0) {
      references[cell.variant] = train_reference(recipe_of(cell, /*alone=*/true, folder.path()));
    }
    const std::string differences = train_and_compare(recipe_of(cell, /*alone=*/false, folder.path()), mesh_of(cell),
                                                      references[cell.variant], &shares);
    ASSERT_EQ(differences, "") << cell.describe();
  }
  if (world().rank() != 0) return;
  std::cout << "  most of its bound that anything took:\n";
  for (const auto& [number, share] : shares) std::cout << "    " << number << " " << share << "\n";
}

TEST(Matrix, ThePairwiseCoverCoversEveryPair) {
  const std::vector<Cell> cells = all_cells(world().size()), cover = pairwise_cover(cells, 1);
  EXPECT_LT(cover.size(), cells.size() / 3);
  std::map<std::string, int> families;
  for (const Cell& cell : cover) ++families[cell.variant.family + (cell.variant.tied ? " tied" : "")];
  EXPECT_EQ(families.size(), 6u);
}

}  // namespace
}  // namespace meshtrain::testing
