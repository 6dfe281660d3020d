#include "runtime/program/run/run_directory.h"

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
  EXPECT_EQ(testing::content(folder.path() / "run" / "plan.yaml"), "mesh:\n  dp: 1\n");
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

}  // namespace
}  // namespace meshtrain
