#include "runtime/program/telemetry/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <regex>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

TEST(Log, HasTimesAndLevelsAfterWhatWasThereAndStdoutTheLinesAlone) {
  const testing::ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "console.log";
  ::testing::internal::CaptureStdout();
  open_log(file);
  spdlog::info("step {}", 1);
  open_log(file);  // as a resumed run does
  spdlog::warn("warning: a disk");
  const std::string kept = testing::content(file);  // no line is buffered in memory
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "step 1\nwarning: a disk\n");
  const std::string time = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d )";
  EXPECT_TRUE(std::regex_match(kept, std::regex(time + "info: step 1\n" + time + "warning: a disk\n"))) << kept;
  EXPECT_TRUE(std::regex_match(log_line("warning", "warning: a disk"), std::regex(time + "warning: a disk\n")));
}

TEST(Log, OneThatCannotBeWrittenCostsNothingElse) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  open_log("/dev/full");
  spdlog::info("step 1");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "step 1\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THROW(open_log("/proc/nowhere/console.log"), std::exception);
}

}  // namespace
}  // namespace meshtrain
