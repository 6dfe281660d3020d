#include "runtime/program/telemetry/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::ScratchFolder;

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Metrics, OneObjectAStep) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "metrics.jsonl";
  MetricsFile(file, 0).append({1, 2.5, 0.75, 1e-3, 1024, 0.5, 2048});
  ASSERT_EQ(lines_of(file).size(), 1u);
  const nlohmann::json line = lines_of(file)[0];
  EXPECT_EQ(line["step"], 1);
  EXPECT_EQ(line["loss"], 2.5);
  EXPECT_EQ(line["grad_norm"], 0.75);
  EXPECT_EQ(line["learning_rate"], 1e-3);
  EXPECT_EQ(line["tokens"], 1024);
  EXPECT_EQ(line["step_seconds"], 0.5);
  EXPECT_EQ(line["tokens_per_second"], 2048.0);
}

TEST(Metrics, OfAnEvaluationAreInItsStepsLine) {
  const ScratchFolder folder;
  MetricsFile metrics(folder.path() / "metrics.jsonl", 0);
  StepMetrics step{1, 2.5};
  metrics.append(step);
  step.evaluation = EvaluationMetrics{2.25, 1000, 0.5};
  metrics.append(step);
  const auto lines = lines_of(folder.path() / "metrics.jsonl");
  EXPECT_FALSE(lines[0].contains("eval_loss"));
  EXPECT_EQ(lines[1]["eval_loss"], 2.25);
  EXPECT_EQ(lines[1]["eval_tokens"], 1000);
  EXPECT_EQ(lines[1]["eval_seconds"], 0.5);
}

TEST(Metrics, HaveTheLoadOfExperts) {
  const ScratchFolder folder;
  MetricsFile metrics(folder.path() / "metrics.jsonl", 0);
  StepMetrics step{1, 2.5};
  metrics.append(step);
  step.experts = ExpertMetrics{.load_max = 2, .load_mean = 1.5, .unused = 3};
  metrics.append(step);
  step.experts->balance_loss = 1.25;
  step.experts->z_loss = 0.5;
  step.experts->dropped = 7;
  metrics.append(step);
  const auto lines = lines_of(folder.path() / "metrics.jsonl");
  EXPECT_FALSE(lines[0].contains("experts"));
  EXPECT_EQ(lines[1]["experts"], (nlohmann::json{{"load_max", 2.0}, {"load_mean", 1.5}, {"unused", 3}}));
  EXPECT_EQ(lines[2]["experts"]["balance_loss"], 1.25);
  EXPECT_EQ(lines[2]["experts"]["z_loss"], 0.5);
  EXPECT_EQ(lines[2]["experts"]["dropped"], 7);
}

TEST(Metrics, HaveCopiesInEachDirectionWhereShardsAreOffloaded) {
  const ScratchFolder folder;
  MetricsFile metrics(folder.path() / "metrics.jsonl", 0);
  StepMetrics step{1, 2.5};
  metrics.append(step);
  step.copies = CopyMetrics{300, 100, 0.25};
  metrics.append(step);
  const auto lines = lines_of(folder.path() / "metrics.jsonl");
  EXPECT_FALSE(lines[0].contains("copied_bytes"));
  EXPECT_FALSE(lines[0]["seconds"].contains("copies_exposed"));
  EXPECT_EQ(lines[1]["seconds"]["copies_exposed"], 0.25);
  EXPECT_EQ(lines[1]["copied_bytes"], (nlohmann::json{{"to_device", 300}, {"to_host", 100}}));
}

TEST(Metrics, SayOfEachStepWhetherItWasSkippedWhereThatMayBe) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "metrics.jsonl";
  MetricsFile metrics(file, 0, /*records_skipped=*/true);
  StepMetrics step{1, 2.5, 0.75};
  metrics.append(step);
  step.grad_norm = std::numeric_limits<double>::infinity();
  step.loss_scale = 1024;
  step.skipped = true;
  step.non_finite = "model.norm.weight";
  metrics.append(step);
  const auto lines = lines_of(file);
  EXPECT_EQ(lines[0]["skipped"], false);
  EXPECT_FALSE(lines[0].contains("loss_scale") || lines[0].contains("non_finite"));
  EXPECT_EQ(lines[1]["skipped"], true);
  EXPECT_EQ(lines[1]["loss_scale"], 1024);
  EXPECT_EQ(lines[1]["non_finite"], "model.norm.weight");
  EXPECT_TRUE(lines[1]["grad_norm"].is_null());
}

TEST(Metrics, AreCutBackToTheResumedStep) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "metrics.jsonl";
  {
    MetricsFile metrics(file, 0);
    for (int64_t step : {1, 2, 3}) metrics.append({step});
  }
  std::ofstream(file, std::ios::app) << "{\"step\": 4, \"lo";  // the process died within a line
  MetricsFile(file, 2).append({3, 9});
  const std::vector<nlohmann::json> lines = lines_of(file);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["loss"], 9.0);
}

TEST(Metrics, AFullDiskIsNamed) {
  const ScratchFolder folder;
  MetricsFile metrics(folder.path() / "metrics.jsonl", 0);
  // A limit on the size of files makes a write fail like a full disk, once its signal is ignored.
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{200, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    for (int64_t step = 1; step <= 10; ++step) metrics.append({step});
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("metrics.jsonl"), std::string::npos) << message;
}

}  // namespace
}  // namespace meshtrain
