#include "runtime/program/run/run_directory.h"
#include "runtime/program/run/preflight.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mesh/base/error.h"
#include "runtime/program/telemetry/metrics.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::ScratchFolder;

TEST(RunDirectory, OneThatHoldsARunIsRefusedAndLeftAsItWas) {
  const ScratchFolder folder;
  {
    RunDirectory run(folder.path() / "run", false);
    run.write("a: 1\n", "mesh:\n  dp: 1\n", {"one", "one", "two"});
    MetricsFile(run.metrics(), 0).append({1});
  }
  EXPECT_EQ(testing::content(folder.path() / "run" / "recipe.yaml"), "a: 1\n");
  EXPECT_EQ(testing::content(folder.path() / "run" / "decisions.yaml"), "mesh:\n  dp: 1\n");
  EXPECT_EQ(testing::content(folder.path() / "run" / "hosts.json"), "{\"hosts\":[\"one\",\"one\",\"two\"]}\n");
  EXPECT_THROW(RunDirectory(folder.path() / "run", false), InputError);
  const std::string lines = testing::content(folder.path() / "run" / "metrics.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1);
  EXPECT_NO_THROW(RunDirectory(folder.path() / "run", true));
}

TEST(RunDirectory, OneInUseIsRefused) {
  const ScratchFolder folder;
  const RunDirectory run(folder.path() / "run", false);
  EXPECT_THROW(RunDirectory(folder.path() / "run", true), InputError);
}

TEST(RunDirectory, OneThatCannotBeMadeIsNamed) {
  try {
    RunDirectory("/proc/nowhere", false);
    FAIL() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/nowhere"), std::string::npos);
  }
}

// A start removes unfinished checkpoints, which may be what fills the disk.
TEST(DiskNotice, OnlyWarnsWhereUnfinishedCheckpointsMayFillTheDisk) {
  const testing::ScratchFolder scratch;
  Recipe recipe;
  recipe.train.steps = 4;
  recipe.checkpoint.every = 1;
  Decisions decisions{{}, MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), {}};
  decisions.optimizer.state_dtype = at::kFloat;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 65536;  // 43 TiB with the optimizer's state, on any disk of a test machine
  shape.vocab_size = 60'000'000;
  shape.intermediate_size = shape.head_dim = 64;
  shape.num_hidden_layers = shape.num_attention_heads = shape.num_key_value_heads = 1;
  const CheckpointFolder checkpoints(scratch.path() / "checkpoints");
  EXPECT_THROW(disk_notice(recipe, decisions, checkpoints, 0, 1), InputError);
  std::filesystem::create_directories(checkpoints.partial(1, "killed"));
  const Notice notice = disk_notice(recipe, decisions, checkpoints, 0, 1);
  EXPECT_TRUE(notice.is_warning && notice.line.starts_with("4 checkpoints of ")) << notice.line;
}

}  // namespace
}  // namespace meshtrain
