// Readers of the files that grow during a run, metrics.jsonl and console.log, for a report.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "mesh/base/error.h"
#include "runtime/program/report/line_follower.h"
#include "runtime/program/report/log_warnings.h"
#include "runtime/program/report/metrics_reader.h"
#include "runtime/program/report/series.h"
#include "runtime/program/report/step_time.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::ScratchFolder;
using Lines = std::vector<std::string>;

// ---- series

TEST(Series, KeepsEachStepWhileThereIsRoom) {
  Series series;
  for (int64_t step = 1; step < Series::kMostColumns; ++step) series.add(step, static_cast<double>(step));
  EXPECT_EQ(series.width(), 1);
  EXPECT_EQ(series.columns()[0].count, 0);
  EXPECT_EQ(series.columns()[7].mean(), 7);
  EXPECT_EQ(series.last(), static_cast<double>(Series::kMostColumns - 1));
}

TEST(Series, LosesNoExtremeAndNoSumWhenThinned) {
  Series series;
  std::mt19937_64 random(3);
  double sum = 0;
  constexpr int64_t kSteps = 300'000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double value = step == 123'457 ? 1e6 : step == 222'222 ? -1e6 : static_cast<double>(random() % 1000);
    sum += value;
    series.add(step, value);
  }
  EXPECT_LE(series.columns().size(), static_cast<size_t>(Series::kMostColumns));
  EXPECT_GT(series.columns().size(), static_cast<size_t>(Series::kMostColumns / 2));
  EXPECT_EQ(series.columns()[static_cast<size_t>(123'457 / series.width())].most, 1e6);
  EXPECT_EQ(series.columns()[static_cast<size_t>(222'222 / series.width())].least, -1e6);
  EXPECT_EQ(series.total().count, kSteps);
  EXPECT_DOUBLE_EQ(series.total().sum, sum);
}

TEST(Series, TakesStepsInAnyOrder) {
  Series series;
  for (const int64_t step : {Series::kMostSteps, int64_t{0}, int64_t{5}}) series.add(step, 1);
  EXPECT_EQ(series.total().count, 3);
  EXPECT_EQ(series.first_step(), 0);
  EXPECT_EQ(series.last_step(), Series::kMostSteps);
}

// ---- files that grow

class Follower : public ::testing::Test {
 protected:
  void append(const std::string& text) const { std::ofstream(file, std::ios::app) << text; }
  Lines read() {
    Lines lines;
    follower.read([&] { lines.emplace_back("again"); }, [&](std::string_view line) { lines.emplace_back(line); });
    return lines;
  }

  ScratchFolder folder;
  std::filesystem::path file = folder.path() / "lines";
  LineFollower follower{file};
};

TEST_F(Follower, ReadsEachLineOnceWhenItIsComplete) {
  EXPECT_EQ(read(), Lines());
  append("one\ntw");
  EXPECT_EQ(read(), Lines({"one"}));
  append("o\n\nthree\n");
  EXPECT_EQ(read(), Lines({"two", "", "three"}));
  EXPECT_EQ(read(), Lines());
}

TEST_F(Follower, BeginsAgainWhenTheFileWasCutReplacedOrRemoved) {
  append("one\ntwo\nthree\n");
  EXPECT_EQ(read().size(), 3u);
  std::filesystem::resize_file(file, 4);
  EXPECT_EQ(read(), Lines({"again", "one"}));
  append("TWO\nTHREE\n");
  EXPECT_EQ(read(), Lines({"TWO", "THREE"}));
  std::filesystem::resize_file(file, 4);  // cut, and longer than before when it is read
  append("2\n3\n4\n5\n6\n7\n8\n");
  EXPECT_EQ(read().front(), "again");
  std::filesystem::remove(file);
  EXPECT_EQ(read(), Lines({"again"}));
  EXPECT_EQ(read(), Lines());
  append("new\n");
  EXPECT_EQ(read(), Lines({"new"}));
}

TEST_F(Follower, LeavesOutLinesThatAreTooLong) {
  append("one\n" + std::string((size_t{1} << 20) + 1, 'x') + "\ntwo\n" + std::string(size_t{1} << 20, 'y') + "\n");
  const Lines lines = read();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1], "two");
  EXPECT_EQ(lines[2].size(), size_t{1} << 20);
  EXPECT_EQ(follower.num_too_long(), 1);
}

TEST_F(Follower, RefusesWhatIsNoFile) {
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // opening it would wait for a writer
  EXPECT_TRUE(has(message<InputError>([&] { read(); }), "is not a regular file"));
}

// ---- metrics

TEST(MetricsReader, ReadsNumbersByTheirPaths) {
  MetricsReader metrics;
  metrics.add(
      R"({"step":3,"loss":2.5,"memory":{"host_peak_bytes":1024},"seconds":{"collectives":{"dp":{"total":0.5,"exposed":0.2}}},)"
      R"("bytes":{"dp":12,"tp":7},"list":[1,[2],{"loss":9}],"skipped":true,"non_finite":"a.b"})");
  EXPECT_EQ(metrics.num_damaged(), 0);
  EXPECT_EQ(metrics["loss"].last(), 2.5);
  EXPECT_EQ(metrics["loss"].total().count, 1) << "not that in the list";
  EXPECT_EQ(metrics["memory.host_peak_bytes"].last(), 1024);
  EXPECT_EQ(metrics["seconds.collectives.dp.exposed"].last(), 0.2);
  EXPECT_EQ(metrics.between("bytes.", ""), (std::vector<std::string>{"dp", "tp"}));
  EXPECT_EQ(metrics.between("seconds.collectives.", ".exposed"), std::vector<std::string>{"dp"});
  EXPECT_FALSE(metrics["nothing"].has_values());
  ASSERT_EQ(metrics.skipped().size(), 1u);
  EXPECT_EQ(metrics.skipped()[0].step, 3);
  EXPECT_EQ(metrics.skipped()[0].parameter, "a.b");
  EXPECT_EQ(metrics.num_outliers(), 0);
  metrics.add(R"({"step":4,"loss":9,"skipped":true,"outlier":"loss and grad_norm"})");
  EXPECT_EQ(metrics.num_skipped(), 2);
  EXPECT_EQ(metrics.num_outliers(), 1);
  EXPECT_EQ(metrics.skipped()[1].outlier, "loss and grad_norm");
  EXPECT_EQ(metrics.skipped()[1].parameter, "");
}

TEST(MetricsReader, DamagedLinesAreCounted) {
  MetricsReader metrics;
  const Lines damaged = {"",
                         "{",
                         "null",
                         "[]",
                         "7",
                         "{\"loss\":1}",
                         "{\"step\":-1}",
                         "{\"step\":1.5,\"loss\":1}",
                         "{\"step\":1e30}",
                         "{\"step\":18446744073709551615}",
                         "{\"step\":1,\"loss\":1e400}",
                         "{\"step\":1}x",
                         "\xff\xfe",
                         std::string(100'000, '['),
                         "{\"step\":1,\"a\":" + std::string(100'000, '[') + "}"};
  for (const std::string& line : damaged) metrics.add(line);
  EXPECT_EQ(metrics.num_damaged(), static_cast<int64_t>(damaged.size()));
  EXPECT_TRUE(metrics.series().empty());
}

TEST(MetricsReader, NullIsNotFinite) {
  MetricsReader metrics;
  metrics.add(R"({"step":1,"loss":null,"mfu":null})");
  metrics.add(R"({"step":2,"loss":1})");
  EXPECT_EQ(metrics["loss"].columns()[1].num_others, 1);
  EXPECT_EQ(metrics["loss"].total().count, 1);
  EXPECT_FALSE(metrics["mfu"].has_values());
}

TEST(MetricsReader, KeysWithoutBoundDoNotTakeMemoryWithoutBound) {
  MetricsReader metrics;
  for (int i = 0; i < 5000; ++i) metrics.add("{\"step\":1,\"key" + std::to_string(i) + "\":1}");
  EXPECT_LT(metrics.series().size(), 1000u);
}

TEST(StepTime, PartsAddUpToTheStep) {
  MetricsReader metrics;
  for (int step = 1; step <= 2000; ++step) {
    metrics.add("{\"step\":" + std::to_string(step) +
                R"(,"step_seconds":1,"seconds":{"data":0.125,"optimizer":0.25,"evaluation":)" +
                (step % 100 == 0 ? "2" : "0") + R"(,"collectives":{"dp":{"total":0.5,"exposed":0.125}}}})");
  }
  const StepTime time = step_time(metrics);
  std::map<std::string, double> means;
  for (const StepPart& part : time.parts) means[part.label] = part.mean_seconds;
  EXPECT_EQ(means, (std::map<std::string, double>{{"forward and backward", 0.5},
                                                  {"waiting for dp", 0.125},
                                                  {"data", 0.125},
                                                  {"optimizer", 0.25},
                                                  {"evaluation", 0.02}}));
  for (size_t i = 0; i < time.parts[0].values.size(); ++i) {
    double sum = 0;
    for (const StepPart& part : time.parts) sum += part.label == "evaluation" ? 0 : part.values[i];
    EXPECT_NEAR(sum, 1, 1e-12) << i;
  }
}

TEST(StepTime, ABubbleIsTheWaitForMessagesAndForTheSlowestStage) {
  const auto parts_with = [](const std::string& ends) {
    MetricsReader metrics;
    for (int step = 1; step <= 4; ++step) {
      metrics.add("{\"step\":" + std::to_string(step) +
                  R"(,"step_seconds":1,"seconds":{"collectives":{"dp":{"exposed":0.0625},"pp":{"exposed":0.25},)" +
                  R"("pp ends":{"exposed":)" + ends + R"(},"world":{"exposed":0.125}}}})");
    }
    std::map<std::string, double> means;
    for (const StepPart& part : step_time(metrics).parts) means[part.label] = part.mean_seconds;
    return means;
  };
  EXPECT_EQ(parts_with("0"), (std::map<std::string, double>{
                                 {"forward and backward", 0.5625}, {"bubble", 0.375}, {"waiting for dp", 0.0625}}));
  EXPECT_EQ(parts_with("0.03125"), (std::map<std::string, double>{{"forward and backward", 0.53125},
                                                                  {"bubble", 0.28125},
                                                                  {"waiting for dp", 0.0625},
                                                                  {"waiting for world", 0.125}}));
}

TEST(StepTime, OldMetricsHaveOnePart) {
  MetricsReader metrics;
  metrics.add(R"({"step":1,"step_seconds":2})");
  ASSERT_EQ(step_time(metrics).parts.size(), 1u);
  EXPECT_EQ(step_time(metrics).parts[0].label, "step");
  EXPECT_TRUE(step_time(MetricsReader()).parts.empty());
}

// ---- warnings of the log

TEST(LogWarnings, TakesWarningsAndErrorsOfEveryVersion) {
  LogWarnings warnings;
  for (const char* line :
       {"2026-03-01 10:00:00.000 info: mine: 3,213,568 parameters, mesh dp=2, fp32",
        "2026-03-01 10:00:01.000 warning: said once", "2026-03-01 10:00:02.000 warning: warning: twice",
        "2026-03-01 10:00:03.000+01:00 warning: said once", "2026-03-01 10:00:04.000 info: warning: something <odd>",
        "2026-03-01 10:00:05.000+01:00 error: rank 1 is gone", "warning: without time", "x: y", ""}) {
    warnings.add(line);
  }
  EXPECT_EQ(warnings.lines(), Lines({"said once", "twice", "something <odd>", "rank 1 is gone"}));
}

}  // namespace
}  // namespace meshtrain
