// With model.freeze_padding_row every mesh computes what one rank computes.

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kPadding = 60;  // of the last tp rank; it occurs among the tokens

/// Returns every way to cut the model over all ranks along one axis, with all modes of sharding, and over tp and dp.
std::vector<Cell> cells(const Variant& variant) {
  const int64_t n = world().size();
  if (n == 1) return {{variant, 1, 1, 1, "none", "contiguous", false, 2}};
  std::vector<Cell> all;
  for (const char* sharding : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_shard"}) {
    all.push_back({variant, n, 1, 1, "none", "contiguous", false, 1, sharding});
  }
  all.push_back({variant, 1, n, 1, "none", "contiguous", false, 2});
  all.push_back({variant, 1, n, 1, "none", "contiguous", true, 1});
  all.push_back({variant, 1, 1, n, "ring", "zigzag", false, 1, "full_shard"});
  if (n > 2) all.push_back({variant, n / 2, 2, 1, "none", "contiguous", true, 1, "full_shard"});
  return all;
}

TEST(Padding, AFrozenRowIsThatOfOneRankOnEveryMesh) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const auto frozen = [&](const Cell& cell, bool alone) {
    Recipe recipe = recipe_of(cell, alone, folder.path());
    recipe.model.shape.pad_token_id = kPadding;
    recipe.model.freeze_padding_row = true;
    return recipe;
  };
  for (const bool tied : {false, true}) {
    for (const char* precision : {"fp64", "bf16_mixed"}) {
      const Variant variant{"llama", tied, "mha", "none", "one", precision, "sgd"};
      const std::vector<Cell> all = cells(variant);
      Reference reference;
      if (world().rank() == 0) reference = train_reference(frozen(all[0], /*alone=*/true));
      for (const Cell& cell : all) {
        EXPECT_EQ(train_and_compare(frozen(cell, /*alone=*/false), mesh_of(cell), reference), "") << cell.describe();
      }
      Recipe trained = frozen(all.back(), /*alone=*/false);
      trained.model.freeze_padding_row = false;
      EXPECT_NE(train_and_compare(trained, mesh_of(all.back()), reference), "") << "the row makes a difference";
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
