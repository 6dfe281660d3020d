#include "runtime/program/telemetry/events.h"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using nlohmann::json;

class Events : public ::testing::Test {
 protected:
  Events() {
    keep_events_in(file, [](int rank) {
      return std::vector<std::pair<std::string, int64_t>>{{"dp", rank / 2}, {"tp", rank % 2}};
    });
  }
  ~Events() override { keep_events_in("", nullptr); }

  /// Returns the lines without their times.
  std::vector<json> lines() const {
    std::vector<json> found;
    std::istringstream text(testing::content(file));
    for (std::string line; std::getline(text, line);) {
      json event = json::parse(line);
      EXPECT_GT(event.at("time").get<double>(), 1.7e9);
      event.erase("time");
      found.push_back(std::move(event));
    }
    return found;
  }

  testing::ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "events.jsonl";
};

TEST_F(Events, HaveTheirValues) {
  EXPECT_EQ(append_event(StartEvent{"mine", {{"dp", 2}, {"tp", 2}}, {"a", "a", "b", "b"}, 4, 20, 64, 32}), "");
  EXPECT_EQ(append_event(ResumeEvent{4, "checkpoints/step-00000004", 0.5, {"train.steps: 20, was 10"}}), "");
  EXPECT_EQ(append_event(CompletedCheckpoint{8, "checkpoints/step-00000008", 0.25}), "");
  for (const int signal : {SIGUSR1, 0, -1}) EXPECT_EQ(append_stopped(9, signal), "");
  EXPECT_EQ(append_done(20), "");
  const std::vector<json> events = lines();
  ASSERT_EQ(events.size(), 7u);
  EXPECT_FALSE(events[0].at("version").get<std::string>().empty());
  EXPECT_EQ(events[0].at("mesh"), json({{"dp", 2}, {"tp", 2}}));
  EXPECT_EQ(events[0].at("ranks"), 4);
  EXPECT_EQ(events[0].at("hosts"), json({"a", "b"}));
  EXPECT_EQ(events[0].at("step"), 4);
  EXPECT_EQ(events[1], json({{"event", "resumed"},
                             {"step", 4},
                             {"folder", "checkpoints/step-00000004"},
                             {"seconds", 0.5},
                             {"changes", {"train.steps: 20, was 10"}}}));
  EXPECT_EQ(events[2],
            json({{"event", "checkpoint"}, {"step", 8}, {"folder", "checkpoints/step-00000008"}, {"seconds", 0.25}}));
  EXPECT_EQ(events[3], json({{"event", "stopped"}, {"step", 9}, {"why", "signal"}, {"signal", "SIGUSR1"}}));
  EXPECT_EQ(events[4], json({{"event", "stopped"}, {"step", 9}, {"why", "time_limit"}}));
  EXPECT_EQ(events[5], json({{"event", "stopped"}, {"step", 9}, {"why", "signal"}}));
  EXPECT_EQ(events[6], json({{"event", "done"}, {"step", 20}}));
}

TEST_F(Events, AFailureNamesRankCauseAndPhase) {
  append_failed({FailureCause::Killed, {3, 1}, "a", SIGKILL, "step", 12, "step 12, vote", "gone"});
  append_failed({.message = "all ranks fail alike"});
  const std::vector<json> events = lines();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], json({{"event", "rank_failed"},
                             {"cause", "killed"},
                             {"rank", 3},
                             {"coordinate", {{"dp", 1}, {"tp", 1}}},
                             {"others", {1}},
                             {"host", "a"},
                             {"signal", "SIGKILL"},
                             {"phase", {{"kind", "step"}, {"text", "step 12, vote"}}},
                             {"step", 12},
                             {"message", "gone"}}));
  EXPECT_EQ(
      events[1],
      json({{"event", "rank_failed"}, {"cause", "exception"}, {"rank", nullptr}, {"message", "all ranks fail alike"}}));
}

TEST_F(Events, LinesOfSeveralWritersDoNotMix) {
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([] {
      for (int64_t step = 1; step <= 25; ++step) append_event(CompletedCheckpoint{step, std::string(9000, 'x'), 1});
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(lines().size(), 100u);
}

TEST_F(Events, AFileThatCannotBeWrittenIsReported) {
  keep_events_in(folder.path() / "none" / "events.jsonl", nullptr);
  EXPECT_EQ(append_done(1), "No such file or directory");
  keep_events_in("", nullptr);
  EXPECT_EQ(append_done(1), "") << "there is no file to write";
}

}  // namespace
}  // namespace meshtrain
