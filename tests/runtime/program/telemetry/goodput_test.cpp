// The ledger of a run's time: parts of a start add up to it, also over starts that were killed.

#include "runtime/program/telemetry/goodput.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::ScratchFolder;

class Goodput : public ::testing::Test {
 protected:
  std::vector<json> starts() const {
    std::vector<json> starts;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) starts.push_back(json::parse(line));
    return starts;
  }
  static double sum(const json& start) {
    double sum = 0;
    for (const json& part : start["seconds"]) sum += part.get<double>();
    return sum;
  }
  /// Expects that the parts of a start add up to it.
  static void expect_complete(const json& start) {
    EXPECT_NEAR(sum(start), start["end"].get<double>() - start["start"].get<double>(), 1e-5) << start;
    for (const json& part : start["seconds"]) EXPECT_GE(part.get<double>(), 0) << start;
  }
  static void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  ScratchFolder folder;
  std::filesystem::path file = folder.path() / "goodput.jsonl";
};

StepMetrics step(int64_t number) {
  StepMetrics metrics{number};
  metrics.seconds = {.data = 0.01, .optimizer = 0.02, .checkpoint = 0.005};
  metrics.collectives["dp"] = {.total = 1, .exposed = 0.01, .sent_bytes = 0};
  metrics.collectives["tp"] = {.total = 1, .exposed = 0.015, .sent_bytes = 0};
  return metrics;
}

TEST_F(Goodput, PartsOfAStartAddUpToItsTime) {
  const double before = now() - process_age();
  {
    GoodputFile goodput(file, 8, "dp=2,tp=4", 3, {});
    pass(0.02);
    goodput.account("start_up");
    pass(0.1);
    goodput.account(step(4));
    StepMetrics evaluated = step(5);
    evaluated.evaluation = EvaluationMetrics{1, 1, 0.03};
    pass(0.1);
    goodput.account(evaluated);
    goodput.end("stopped");
  }
  ASSERT_EQ(starts().size(), 1u);
  const json start = starts()[0];
  expect_complete(start);
  EXPECT_EQ(start["ranks"], 8);
  EXPECT_EQ(start["mesh"], "dp=2,tp=4");
  EXPECT_EQ(start["from_step"], 3);
  EXPECT_EQ(start["to_step"], 5);
  EXPECT_EQ(start["ended"], "stopped");
  EXPECT_NEAR(start["start"].get<double>(), before, 0.1) << "counts from the start of the process";
  const json seconds = start["seconds"];
  EXPECT_NEAR(seconds["data"].get<double>(), 0.02, 1e-9);
  EXPECT_NEAR(seconds["exposed_communication"].get<double>(), 0.05, 1e-9);
  EXPECT_NEAR(seconds["checkpoint"].get<double>(), 0.01, 1e-9);
  EXPECT_NEAR(seconds["evaluation"].get<double>(), 0.03, 1e-9);
  EXPECT_GE(seconds["training"].get<double>(), 0.2 - 0.11);
  EXPECT_GE(seconds["start_up"].get<double>(), 0.02);
}

TEST_F(Goodput, PartsThatWantMoreTimeThanThereWasGetWhatThereWas) {
  GoodputFile goodput(file, 1, "", 0, {});
  goodput.account("start_up");
  goodput.account("training", {{"data", 1000.0}, {"checkpoint", 1000.0}});
  goodput.end("done");
  expect_complete(starts()[0]);
}

TEST_F(Goodput, AStartThatSaysNoEndWasKilledAndItsStepsMadeAgainAreLost) {
  double at_four = 0;
  {
    GoodputFile first(file, 2, "dp=2", 0, {});
    first.account("start_up");
    for (int64_t number = 1; number <= 4; ++number) {
      pass(0.05);
      first.account(step(number));
    }
    at_four = now();
    // As a process that is killed leaves it: the file of a moment before its end.
    pass(1.01);
    first.account(step(5));
    std::filesystem::copy_file(file, folder.path() / "killed");
    first.end("done");
  }
  std::filesystem::rename(folder.path() / "killed", file);
  ASSERT_EQ(starts()[0]["ended"], "");
  const double training = starts()[0]["seconds"]["training"];
  const double sum_before = sum(starts()[0]);

  const CutStep cut{at_four, 0.05, 0.01, 0.025, 0.005, 0};
  { GoodputFile second(file, 2, "dp=2", 3, {cut}); }
  ASSERT_EQ(starts().size(), 2u);
  const json killed = starts()[0];
  EXPECT_EQ(killed["ended"], "killed");
  expect_complete(killed);
  EXPECT_NEAR(sum(killed), sum_before, 1e-9);
  EXPECT_NEAR(killed["seconds"]["lost"].get<double>(), 0.05, 1e-9);
  EXPECT_NEAR(killed["seconds"]["training"].get<double>(), training - 0.01, 1e-9);
  EXPECT_NEAR(killed["seconds"]["data"].get<double>(), 0.04, 1e-9) << "five steps of 0.01 s, one of them lost";
  EXPECT_EQ(starts()[1]["ended"], "failed") << "destroyed without an end";
  EXPECT_EQ(starts()[1]["from_step"], 3);
}

TEST_F(Goodput, StepsAfterTheLastRecordOfAKilledStartAreLostToo) {
  std::ofstream(file) << R"({"start": 100, "end": 102, "ranks": 2, "mesh": "dp=2", "from_step": 7, "to_step": 7, )"
                      << R"("ended": "", "seconds": {"start_up": 2}})" << '\n';
  // Step 8 began while the start was recorded, and took 0.5 s; then came step 9.
  {
    GoodputFile second(file, 2, "dp=2", 7, {CutStep{102.25, 0.5, 0, 0, 0, 0, 8}, CutStep{102.5, 0.25, 0, 0, 0, 0, 9}});
  }
  const json killed = starts()[0];
  EXPECT_EQ(killed["ended"], "killed");
  EXPECT_EQ(killed["to_step"], 9);
  EXPECT_EQ(killed["end"], 102.5);
  EXPECT_EQ(killed["seconds"]["lost"], 0.5);
  expect_complete(killed);
}

TEST_F(Goodput, KeepsLinesThatItDoesNotUnderstand) {
  std::ofstream(file) << "{\"half\n[1]\n{\"seconds\": 3, \"ended\": \"\"}\n";
  { GoodputFile goodput(file, 1, "", 0, {CutStep{1, 1}}); }
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "{\"half");
  EXPECT_EQ(lines[1], "[1]");
  EXPECT_EQ(lines[2], "{\"seconds\": 3, \"ended\": \"\"}");
}

TEST_F(Goodput, AFileThatCannotBeWrittenEndsNothing) {
  GoodputFile goodput(folder.path() / "absent" / "goodput.jsonl", 1, "", 0, {});
  goodput.account(step(1));
  goodput.end("done");
}

}  // namespace
}  // namespace meshtrain
