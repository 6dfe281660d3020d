#include "runtime/program/run/training_loop.h"

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <tuple>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "tests/runtime/program/run/run_folder.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class TrainingLoopTest : public RunFolder {};

// Constant weights let losses identify batches: step k has the loss of a run that begins with its samples.
TEST_F(TrainingLoopTest, EachStepHasTheNextSamplesAlsoAfterAChangeOfTheBatch) {
  std::mt19937_64 random(7);
  std::string tokens(18 * 17, '\0');
  for (char& id : tokens) id = static_cast<char>(random() % 64);
  const auto settings = [&](const std::string& name, size_t first, size_t samples, int steps, int batch) {
    write_file(path(name), tokens.substr(first * 17, samples * 17));
    return Words{"data.tokens=" + path(name).string(), "train.steps=" + std::to_string(steps),
                 "train.global_batch=" + std::to_string(batch), "optimizer.learning_rate=1e-30", "checkpoint.every=3"};
  };
  train(settings("all", 0, 18, 3, 4));
  train(settings("all", 0, 18, 5, 3), resumed());
  const std::vector<double> losses = column("loss"), seen = column("tokens");
  ASSERT_EQ(losses.size(), 5u);
  EXPECT_EQ(seen, (std::vector<double>{64, 128, 192, 240, 288}));
  for (const auto& [step, first, batch] : {std::tuple{0, 0, 4}, {1, 4, 4}, {2, 8, 4}, {3, 12, 3}, {4, 15, 3}}) {
    run_dir = path("run" + std::to_string(step));
    train(settings("step" + std::to_string(step), static_cast<size_t>(first), static_cast<size_t>(batch), 1, batch));
    EXPECT_NEAR(losses[static_cast<size_t>(step)], column("loss").at(0), 1e-6) << "step " << step + 1;
  }
  EXPECT_GT(std::abs(losses[0] - losses[1]), 1e-3) << "the batches must have different losses";
}

// The same recipe, whose steps begin after 0, 2 and 4 samples of 16 tokens and then have 3 samples.
TEST_F(TrainingLoopTest, ABatchThatGrowsHasTheNextSamplesAlsoAcrossAResume) {
  std::mt19937_64 random(7);
  std::string tokens(18 * 17, '\0');
  for (char& id : tokens) id = static_cast<char>(random() % 64);
  const auto settings = [&](const std::string& name, size_t first, size_t samples, int steps,
                            const std::string& batch) {
    write_file(path(name), tokens.substr(first * 17, samples * 17));
    return Words{"data.tokens=" + path(name).string(), "train.steps=" + std::to_string(steps),
                 "train.global_batch=" + batch, "optimizer.learning_rate=1e-30", "checkpoint.every=2"};
  };
  const std::string sizes = "[{until: 70, size: 2}, {size: 3}]";
  train(settings("all", 0, 18, 5, sizes));
  EXPECT_TRUE(has(log, "global batch: 2 samples up to step 3 (96 tokens), then 3\n")) << log;
  EXPECT_EQ(column("tokens"), (std::vector<double>{32, 64, 96, 144, 192}));
  EXPECT_EQ(column("global_batch"), (std::vector<double>{2, 2, 2, 3, 3}));
  const std::vector<double> losses = column("loss");
  run_dir = path("stopped");
  train(settings("all", 0, 18, 2, sizes));
  train(settings("all", 0, 18, 5, sizes), resumed());
  EXPECT_EQ(column("loss"), losses) << "to the bit";
  for (const auto& [step, first, batch] : {std::tuple{0, 0, 2}, {1, 2, 2}, {2, 4, 2}, {3, 6, 3}, {4, 9, 3}}) {
    run_dir = path("run" + std::to_string(step));
    train(settings("step" + std::to_string(step), static_cast<size_t>(first), static_cast<size_t>(batch), 1,
                   std::to_string(batch)));
    EXPECT_NEAR(losses[static_cast<size_t>(step)], column("loss").at(0), 1e-6) << "step " << step + 1;
  }
}

/// Returns true when the last of `numbers` is above the mean of up to six before it by more than two deviations.
bool stands_out(std::span<const double> numbers) {
  const double last = numbers.back();
  numbers = numbers.first(numbers.size() - 1);
  if (numbers.size() > 6) numbers = numbers.last(6);
  if (numbers.size() < 2) return false;
  const auto count = static_cast<double>(numbers.size());
  const double mean = std::accumulate(numbers.begin(), numbers.end(), 0.0) / count;
  double squares = 0;
  for (const double number : numbers) squares += (number - mean) * (number - mean);
  return last - mean > 2 * std::sqrt(squares / (count - 1));
}

TEST_F(TrainingLoopTest, AStepThatIsAnOutlierIsSkippedAndNamedAlsoAcrossAResume) {
  std::string tokens(48 * 17, '\5');  // twelve steps, of which the tenth has other tokens
  std::fill_n(tokens.begin() + 36 * 17, 4 * 17, '\50');
  write_file(path("spike.bin"), tokens);
  const auto settings = [&](int steps) {
    return Words{"data.tokens=" + path("spike.bin").string(), "train.steps=" + std::to_string(steps),
                 "train.skip_outliers={window: 6, sigma: 2}", "train.z_loss=1e-3", "checkpoint.every=8"};
  };
  train(settings(12));
  const std::vector<nlohmann::json> steps = lines("metrics.jsonl");
  const std::vector<double> losses = column("loss"), norms = column("grad_norm");
  ASSERT_EQ(steps.size(), 12u);
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool loss = stands_out({losses.data(), i + 1}), norm = stands_out({norms.data(), i + 1});
    EXPECT_EQ(steps[i].at("skipped"), loss || norm) << i;
    EXPECT_EQ(steps[i].value("outlier", ""), loss && norm ? "loss and grad_norm"
                                             : loss       ? "loss"
                                             : norm       ? "grad_norm"
                                                          : "")
        << i;
    EXPECT_GT(steps[i].at("z_loss"), 1) << "of 64 logits around 0";
  }
  EXPECT_EQ(steps[9].at("skipped"), true);
  EXPECT_TRUE(has(log, "  skipped, an outlier: loss")) << log;
  EXPECT_TRUE(has(log, "  z loss ")) << log;
  run_dir = path("stopped");
  train(settings(8));
  train(settings(12), resumed());
  EXPECT_EQ(column("loss"), losses) << "to the bit";
  EXPECT_EQ(lines("metrics.jsonl")[9].at("skipped"), true);
}

TEST_F(TrainingLoopTest, CheckpointsAreWrittenWhenTheyAreDueAndAfterTheLastStep) {
  train({"train.steps=5", "checkpoint.every=2"});
  EXPECT_EQ(checkpoints(), (Words{"step-00000002", "step-00000004", "step-00000005"}));
  EXPECT_EQ(events(), (Words{"started", "checkpoint", "checkpoint", "checkpoint", "done"}));
  EXPECT_EQ(lines("events.jsonl").back().at("step"), 5);
  EXPECT_TRUE(has(log, " info: checkpoint of step 5 written in ")) << log;
}

TEST_F(TrainingLoopTest, ATimeLimitEndsARunAfterAStepWithACheckpointAndNoEvaluation) {
  write_file(path("held_out.bin"), std::string(8 * 17, '\1'));
  const Words words = {"train.time_limit=1e-9", "evaluate={every: 1, tokens: " + path("held_out.bin").string() + "}"};
  EXPECT_EQ(train(words), RunEnd::Stopped);
  EXPECT_TRUE(has(log, " info: stopped by train.time_limit after step 1; continue with --resume\n")) << log;
  EXPECT_EQ(checkpoints(), Words{"step-00000001"});
  ASSERT_EQ(lines("metrics.jsonl").size(), 1u);
  EXPECT_FALSE(lines("metrics.jsonl")[0].contains("eval_loss"));
  const nlohmann::json stopped = lines("events.jsonl").back();
  EXPECT_EQ(stopped.at("why"), "time_limit");
  EXPECT_FALSE(stopped.contains("signal"));
}

TEST_F(TrainingLoopTest, ARunIsNotStoppedAfterItsLastStep) {
  EXPECT_EQ(train({"train.steps=1", "train.time_limit=1e-9"}), RunEnd::Done);
  EXPECT_EQ(events().back(), "done");
}

TEST_F(TrainingLoopTest, EvaluatesWhenItIsDueAndAfterTheLastStepAndChangesNothing) {
  train({"train.steps=3"});
  const std::vector<double> losses = column("loss");
  run_dir = path("evaluated");
  write_file(path("held_out.bin"), std::string(8 * 17, '\1'));
  train({"train.steps=3", "evaluate={every: 2, tokens: " + path("held_out.bin").string() + "}"});
  EXPECT_EQ(column("loss"), losses) << "to the bit";
  std::map<int, bool> evaluated;
  for (const nlohmann::json& line : lines("metrics.jsonl")) evaluated[line.at("step")] = line.contains("eval_loss");
  EXPECT_EQ(evaluated, (std::map<int, bool>{{1, false}, {2, true}, {3, true}}));
}

TEST_F(TrainingLoopTest, AStepWithoutALabelIsSkippedAndNamed) {
  std::string mask(100 * 17, '\1');
  std::fill_n(mask.begin() + 4 * 17, 4 * 17, '\0');
  write_file(path("mask"), mask);
  train({"train.steps=3", "data.loss_mask=" + path("mask").string()});
  const std::vector<nlohmann::json> steps = lines("metrics.jsonl");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_TRUE(steps[1].at("loss").is_null());
  EXPECT_EQ(steps[1].at("counted_tokens"), 0);
  EXPECT_EQ(steps[1].at("no_label"), path("tokens.bin").string() + ": sample 4 to 7");
  EXPECT_EQ(steps[2].at("tokens"), 3 * 64) << "the order of samples continues";
  EXPECT_TRUE(has(log, "step 2/3  skipped: no label of it counts: ")) << log;
}

TEST_F(TrainingLoopTest, StepsThatAreSkippedInARowEndTheRunAlsoAcrossAResume) {
  const Words words = {"train.precision=fp16_mixed", "train.loss_scale={static: 1.0e+30}", "train.max_skipped=3",
                       "checkpoint.every=1", "train.steps=9"};
  EXPECT_EQ(failure<AgreedError>(words).substr(0, 8), "step 3: ");
  for (const nlohmann::json& line : lines("metrics.jsonl")) EXPECT_EQ(line.at("skipped"), true);
  EXPECT_EQ(failure<AgreedError>(words, resumed()).substr(0, 8), "step 3: ")
      << "the two steps before the checkpoint count";
}

TEST_F(TrainingLoopTest, TrainingThePaddingRowIsReportedOnce) {
  // The tokens are 0 to 49, repeated; token 40 first occurs in the third sample.
  train({"model.pad_token_id=40"});
  const std::string line = "step 1 has the padding token, pad_token_id 40, 1 time in its inputs: ";
  ASSERT_TRUE(has(log, line)) << log;
  EXPECT_FALSE(has(log.substr(log.find(line) + line.size()), "has the padding token")) << log;
  run_dir = path("absent");
  train({"model.pad_token_id=60"});
  EXPECT_FALSE(has(log, "padding")) << "the padding token does not occur";
  run_dir = path("frozen");
  train({"model.pad_token_id=40", "model.freeze_padding_row=true"});
  EXPECT_FALSE(has(log, "has the padding token")) << log;
}

TEST_F(TrainingLoopTest, MetricsAreDurableBeforeACheckpointIs) {
  inject_faults("fdatasync:metrics.jsonl:EIO");
  const std::string said = failure<AgreedError>({"checkpoint.every=3"});
  EXPECT_TRUE(has(said, "cannot write " + (run_dir / "metrics.jsonl").string() + ": Input/output error")) << said;
  EXPECT_EQ(checkpoints(), Words{});
}

TEST_F(TrainingLoopTest, MetricsThatFailWhenTheyAreClosedAreReported) {
  inject_faults("close:metrics.jsonl:EIO");
  const std::string said = failure<std::runtime_error>({"checkpoint.every=3"});
  EXPECT_TRUE(has(said, "cannot write " + (run_dir / "metrics.jsonl").string() + ": Input/output error")) << said;
  EXPECT_EQ(checkpoints(), (Words{"step-00000003", "step-00000004"}));
}

TEST_F(TrainingLoopTest, ACheckpointThatWasNotAskedForPreventsNoExport) {
  for (const std::string fault : {"mkdir:checkpoints:EDQUOT", "fdatasync:metrics.jsonl:EIO"}) {
    run_dir = path("run" + std::to_string(fault.size()));
    const fs::path weights = path("weights" + std::to_string(fault.size()));
    inject_faults(fault);
    EXPECT_EQ(train({"train.export=" + weights.string()}), RunEnd::Done);
    EXPECT_TRUE(has(log, " error: ") && has(log, has(fault, "EIO") ? ": Input/output" : ": Disk quota")) << log;
    EXPECT_TRUE(fs::exists(weights / "model.safetensors"));
  }
}

}  // namespace
}  // namespace meshtrain::testing
