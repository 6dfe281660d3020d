// Mixtures of experts on every kind of mesh: what one rank computes, in fp64, in which every token has the same
// experts.

#include <gtest/gtest.h>

#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

Variant mixture_of(const char* family, const char* documents, const char* optimizer) {
  return {family, std::string(family) == "qwen2_moe", "mha", "uneven", documents, "fp64", optimizer};
}

/// Returns meshes of all ranks along each axis, with all experts on each rank or cut over ep.
std::vector<Cell> mixture_cells(const char* family) {
  const int64_t n = world().size();
  const Variant packed = mixture_of(family, "packed", "sgd"), one = mixture_of(family, "one", "muon");
  std::vector<Cell> all = {{packed, n, 1, 1, "none", "contiguous", false, 2, "full_shard", "full", "sublayer"},
                           {one, n, 1, 1, "none", "contiguous", false, 1, "shard_grad_op", "selective"},
                           {packed, 1, n, 1, "none", "contiguous", false, 2, "no_shard", "none"},
                           {packed, 1, n, 1, "none", "contiguous", true, 1, "no_shard", "alternate"},
                           {one, 1, n, 1, "none", "contiguous", true, 2, "no_shard", "selective"},
                           {packed, 1, 1, n, "ring", "zigzag", false, 1, "full_shard", "full"}};
  if (n == 4) all.push_back({packed, 2, 2, 1, "none", "contiguous", true, 2, "hybrid_shard", "full"});
  Cell pipeline{mixture_of(family, "packed", "adamw"), 1, 1, 1, "none", "contiguous", false, n, "no_shard", "none"};
  pipeline.variant.layers = std::max<int64_t>(n, 2);
  pipeline.pp = n;
  if (n > 1) all.push_back(pipeline);
  if (n == 1) return all;
  const int64_t most = std::string(family) == "olmoe" ? 1 : std::string(family) == "granitemoe" ? 2 : n;
  for (const size_t cut : {1, 2, 4, 5}) all[cut].ep = most;
  if (n == 4) {
    all.back().ep = 1;
    all[6].ep = std::min<int64_t>(most, 2);
    Cell both = pipeline;
    both.pp = 2, both.dp = 2, both.ep = std::min<int64_t>(most, 2), both.schedule = "zb_h1";
    all.push_back(both);
  }
  return all;
}

class Experts : public ::testing::TestWithParam<const char*> {};

TEST_P(Experts, ComputeOnEveryMeshWhatOneRankComputes) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  std::map<Variant, Reference> references;
  for (const Cell& cell : mixture_cells(GetParam())) {
    if (world().rank() == 0 && !references.contains(cell.variant)) {
      references.emplace(cell.variant, train_reference(recipe_of(cell, /*alone=*/true, folder.path())));
    }
    EXPECT_EQ(train_and_compare(recipe_of(cell, /*alone=*/false, folder.path()), mesh_of(cell),
                                world().rank() == 0 ? references.at(cell.variant) : Reference()),
              "")
        << cell.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Experts,
                         ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe",
                                           "granitemoeshared"));

}  // namespace
}  // namespace meshtrain::testing
