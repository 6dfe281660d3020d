// Activation checkpointing does not change the bits of a training run, on any mesh.

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Returns meshes of all ranks along each axis, and with 4 ranks along tp and cp, with everything that recomputation
/// repeats.
std::vector<Cell> cells() {
  const int64_t n = world().size();
  const auto variant = [](const char* family, bool tied, const char* documents, const char* precision) {
    return Variant{family, tied, "mha", "uneven", documents, precision, "adamw"};
  };
  std::vector<Cell> all;
  for (const bool packed : {false, true}) {
    const char* documents = packed ? "packed" : "one";
    all.push_back({variant("llama", packed, documents, "fp32"), n, 1, 1, "none", "contiguous", false, 2});
    for (const bool sequence_parallel : {false, true}) {
      all.push_back(
          {variant("qwen3", !packed, documents, "fp64"), 1, n, 1, "none", "contiguous", sequence_parallel, 2});
      if (n == 4) {
        all.push_back({variant("qwen2", packed, documents, "bf16"), 1, 2, 2, "ring", "zigzag", sequence_parallel, 1});
      }
    }
    for (const char* algorithm : {"ring", "all_gather", "ulysses"}) {
      all.push_back({variant("llama", !packed, documents, "fp32"), 1, 1, n, algorithm, "zigzag", false, 1});
    }
  }
  return all;
}

TEST(Recompute, ChangesNoBit) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  for (Cell cell : cells()) {
    const DeviceMesh mesh(MeshLayout({{"dp", cell.dp}, {"cp", cell.cp}, {"tp", cell.tp}}), world());
    const Trace wanted = train(recipe_of(cell, /*alone=*/false, folder.path()), mesh);
    for (const char* recompute : {"full", "selective", "alternate"}) {
      cell.recompute = recompute;
      EXPECT_EQ(first_difference(train(recipe_of(cell, /*alone=*/false, folder.path()), mesh), wanted), "")
          << cell.describe();
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
