#include "runtime/program/telemetry/json_lines.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

TEST(JsonLines, SaysWhichStepsHaveNoLine) {
  const testing::ScratchFolder folder;
  const auto missing = [&](const std::string& lines, int64_t last_step) {
    std::ofstream(folder.path() / "metrics.jsonl") << lines;
    return JsonLines(folder.path() / "metrics.jsonl", last_step).missing();
  };
  const std::string lines = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":7}\n{\"step\":9}\n";
  EXPECT_EQ(missing(lines, 3), "");
  EXPECT_EQ(missing(lines, 6), "steps 4 to 6");
  EXPECT_EQ(missing(lines, 10), "steps 4 to 6, step 8, step 10");
  EXPECT_EQ(missing("{\"step\":1}\n{\"step\":2", 2), "step 2") << "a line that was cut short";
  EXPECT_EQ(missing("", 2), "steps 1 to 2");
  EXPECT_EQ(missing("", 0), "");
}

}  // namespace
}  // namespace meshtrain
