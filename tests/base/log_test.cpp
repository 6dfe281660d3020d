#include "mesh/base/log.h"

#include <gtest/gtest.h>

#include <regex>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::content;

/// Ends the log of a test, and captures the lines of both streams.
class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
  }
  ~LogTest() override {
    if (!is_read_) printed();
    close_log();
    set_log_level(LogLevel::Info);
  }

  struct Printed {
    std::string out, err;
  };
  Printed printed() {
    is_read_ = true;
    std::string out = ::testing::internal::GetCapturedStdout();
    return {std::move(out), ::testing::internal::GetCapturedStderr()};
  }

  static void log_each() {
    log_info("a step");
    log_warning("a disk");
    log_error("a file");
    log_failure("an end");
  }

  /// Expects lines of console.log, without their times.
  static void expect_kept(const std::filesystem::path& file, const std::string& lines) {
    const std::regex time(R"((^|\n)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d )");
    EXPECT_EQ(std::regex_replace(content(file), time, "$1"), lines) << content(file);
  }

  testing::ScratchFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "console.log";
  static constexpr const char* kKept = "info: a step\nwarning: a disk\nerror: a file\nerror: an end\n";

 private:
  bool is_read_ = false;
};

TEST_F(LogTest, GoesToStderrWhereNoRunIs) {
  log_each();
  const auto [out, err] = printed();
  EXPECT_EQ(out, "");
  EXPECT_EQ(err, "a step\nmeshtrain: warning: a disk\nmeshtrain: error: a file\nmeshtrain: an end\n");
}

TEST_F(LogTest, OfARunIsAppendedToItsFileAndItsInfoGoesToStdout) {
  log_to(file_);
  log_info("before");
  log_to(file_);  // as a resumed run does
  log_each();
  expect_kept(file_, "info: before\n" + std::string(kKept));  // no line is buffered in memory
  close_log();
  log_info("after");
  const auto [out, err] = printed();
  EXPECT_EQ(out, "before\na step\n");
  EXPECT_EQ(err, "meshtrain: warning: a disk\nmeshtrain: error: a file\nmeshtrain: an end\nafter\n");
  expect_kept(file_, "info: before\n" + std::string(kKept));
}

TEST_F(LogTest, OfAnotherRankHasItsWarningsInAFileThatExists) {
  log_warnings_to(file_);
  log_each();
  EXPECT_FALSE(std::filesystem::exists(file_));
  log_to(file_);
  log_warnings_to(file_);
  log_each();
  expect_kept(file_, "warning: a disk\nerror: a file\nerror: an end\n");
}

TEST_F(LogTest, PrintsItsLevelAndAboveAndKeepsAll) {
  const std::string warning = "meshtrain: warning: a disk\n", error = "meshtrain: error: a file\n",
                    failure = "meshtrain: an end\n";
  log_to(file_);
  std::string expected, kept;
  for (const auto& [word, err] : {std::pair("warning", warning + error + failure), std::pair("error", error + failure),
                                  std::pair("off", failure)}) {
    set_log_level(log_level_of(word));
    log_each();
    expected += err;
    kept += kKept;
  }
  set_log_level(log_level_of("info"));
  log_info("last");
  const auto [out, err] = printed();
  EXPECT_EQ(out, "last\n");
  EXPECT_EQ(err, expected) << "a failed command has its line at every level";
  expect_kept(file_, kept + "info: last\n");
}

TEST_F(LogTest, RefusesAWordThatIsNoLevel) {
  EXPECT_EQ(testing::message<InputError>([] { log_level_of("loud"); }),
            "\"loud\" is not a log level: give info, warning, error or off");
  EXPECT_THROW(log_level_of(""), InputError);
  EXPECT_THROW(log_level_of("Info"), InputError);
}

TEST_F(LogTest, AFileThatCannotBeWrittenCostsNothingElse) {
  log_to("/dev/full");
  log_each();
  const std::string nowhere = "/proc/nowhere/console.log";
  EXPECT_TRUE(testing::message<std::runtime_error>([&] { log_to(nowhere); }).starts_with("cannot write " + nowhere));
  log_info("later");
  const auto [out, err] = printed();
  EXPECT_EQ(out, "a step\nlater\n");
  EXPECT_EQ(err, "meshtrain: warning: a disk\nmeshtrain: error: a file\nmeshtrain: an end\n");
}

}  // namespace
}  // namespace meshtrain
