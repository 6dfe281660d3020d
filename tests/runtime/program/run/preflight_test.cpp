#include "runtime/program/run/preflight.h"

#include <gtest/gtest.h>

#include "tests/runtime/program/recipe/recipe_folder.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Preflight, RefusesToOffloadMoreThanTheHostHas) {
  EXPECT_NO_THROW(check_offload_memory(4 * kGiB, 8, 32 * kGiB));
  EXPECT_EQ(
      input_error([] { check_offload_memory(5 * kGiB, 8, 32 * kGiB); }),
      "parallel.fsdp.offload.to: host keeps 5 GiB of a rank in the host's memory, 40 GiB of 8 ranks, but this host "
      "has 32 GiB free: use more hosts, or offload to disk");
}

}  // namespace
}  // namespace meshtrain::testing
