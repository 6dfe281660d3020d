// A checkpoint of shards on a disk that cannot write them.
#include <gtest/gtest.h>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

TEST(OffloadedCheckpoint, IsNotMadeOfShardsThatTheDiskLost) {
  const ScratchFolder scratch(world());
  if (world().rank() == 0) write_tokens(scratch.path());
  world().barrier();
  const int64_t n = world().size();
  const Variant variant{"llama", true, "mha", "none", "one", "fp32", "adamw"};
  Recipe recipe = recipe_of({variant, n, 1, 1, "none", "contiguous", false, 1, n == 1 ? "no_shard" : "full_shard"},
                            n == 1, scratch.path());
  recipe.parallel.fsdp.offload = {"disk", scratch.path() / "shards"};
  Training training(recipe, world());
  training.run(1);
  const std::filesystem::path run = scratch.path() / "run";
  training.save(run);
  const auto before = contents(run / "step-00000001");
  training.run(1);
  world().barrier();
  if (world().rank() == n - 1) inject_faults("sync_file_range:meshtrain-shards:ENOSPC");
  std::string message;
  try {
    training.save(run);
  } catch (const AgreedError& error) {
    message = error.what();
  }
  inject_faults("");
  world().barrier();
  EXPECT_TRUE(message.starts_with("the checkpoint of step 2 was not written: ")) << message;
  EXPECT_NE(message.find("offload to disk: some of the shards could not be written, and are lost in " +
                         (scratch.path() / "shards").string() + ": No space left on device"),
            std::string::npos)
      << message;
  EXPECT_EQ(CheckpointFolder(run).steps(), std::vector<int64_t>{1});
  EXPECT_EQ(contents(run / "step-00000001"), before);
  world().barrier();
}

}  // namespace
}  // namespace meshtrain::testing
