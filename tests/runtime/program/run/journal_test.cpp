#include "runtime/program/run/journal.h"

#include <csignal>

#include "tests/runtime/program/run/run_folder.h"

namespace meshtrain::testing {
namespace {

class JournalTest : public RunFolder {
 protected:
  /// Opens the journal of a run that continues after `last_step`.
  Journal open(const Words& settings = {}, int64_t last_step = 0) const {
    const Recipe asked = recipe(settings);
    keep_events_in(RunDirectory::events_of(run_dir),
                   [](int) { return std::vector<std::pair<std::string, int64_t>>(); });
    return Journal(asked, decisions_of(asked), {"one"}, std::make_unique<RunDirectory>(run_dir, last_step > 0),
                   last_step);
  }
  std::string console() const { return content(run_dir / "console.log"); }
  static StepMetrics of_step(int64_t step) {
    return {.step = step, .loss = 2, .grad_norm = 1, .learning_rate = 0.1, .step_seconds = 0.5};
  }
};

TEST_F(JournalTest, KeepsTheRecipeAndTheDecisionsAsTheyRun) {
  const Journal journal = open({"train.seed=7"});
  EXPECT_TRUE(has(content(run_dir / "recipe.yaml"), "\n  seed: 7\n"));
  EXPECT_TRUE(has(content(run_dir / "decisions.yaml"), "mesh:\n"));
  EXPECT_EQ(content(run_dir / "hosts.json"), "{\"hosts\":[\"one\"]}\n");
}

TEST_F(JournalTest, PrintsAStepWhenItIsDueTheLastOneAndSkippedOnes) {
  Journal journal = open({"train.log_every=3", "train.steps=7"});
  for (int64_t step = 1; step <= 7; ++step) {
    StepMetrics metrics = of_step(step);
    metrics.skipped = step == 4;
    journal.record(metrics);
  }
  EXPECT_EQ(lines("metrics.jsonl").size(), 7u) << "the file has all steps";
  for (int64_t step = 1; step <= 7; ++step) {
    const bool is_printed = step == 3 || step == 4 || step == 6 || step == 7;
    EXPECT_EQ(has(console(), " info: step " + std::to_string(step) + "/7 "), is_printed) << step << "\n" << console();
  }
}

TEST_F(JournalTest, RemovesStepsAfterTheOneThatItContinues) {
  {
    Journal journal = open();
    for (int64_t step = 1; step <= 4; ++step) journal.record(of_step(step));
  }
  Journal journal = open({}, /*last_step=*/2);
  journal.record(of_step(3));
  EXPECT_EQ(column("step"), (std::vector<double>{1, 2, 3}));
}

TEST_F(JournalTest, SaysWhereItResumesWhatHasChangedAndWhichLinesAreLost) {
  write_file(run_dir / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");  // as after a crash of the host
  const Journal journal = open({}, /*last_step=*/6);
  journal.announce(ResumePoint{.state = {.step = 6},
                               .folder = checkpoint("step-00000006"),
                               .changes = {"train.steps: 8, was 6"},
                               .warning = "the rate moves",
                               .seconds = 0.25,
                               .set_aside = {7}});
  for (const std::string& line :
       {" info: resumed after step 6, from " + checkpoint("step-00000006").string() + " in 0.25 s\n",
        std::string(" info:   train.steps: 8, was 6\n"), std::string(" warning: the rate moves\n"),
        std::string(" info: the checkpoint of step 7, which is later, is set aside"),
        std::string(" warning: metrics.jsonl has no lines of steps 4 to 6: these lines were lost\n")}) {
    EXPECT_TRUE(has(console(), line)) << line << " is not in " << console();
  }
  const nlohmann::json event = lines("events.jsonl").back();
  EXPECT_EQ(event.at("event"), "resumed");
  EXPECT_EQ(event.at("step"), 6);
  EXPECT_EQ(event.at("changes"), (Words{"train.steps: 8, was 6", "warning: the rate moves"}));
}

TEST_F(JournalTest, AStopIsRecordedWithItsCause) {
  Journal journal = open();
  journal.record(of_step(1));
  journal.announce_stop(SIGTERM);
  EXPECT_TRUE(has(console(), "stopped on request after step 1; continue with --resume\n")) << console();
  journal.announce_stop(0);
  EXPECT_TRUE(has(console(), "stopped by train.time_limit after step 1;")) << console();
  const std::vector<nlohmann::json> events = lines("events.jsonl");
  EXPECT_EQ(events.at(0).at("signal"), "SIGTERM");
  EXPECT_EQ(events.at(1).at("why"), "time_limit");
}

TEST_F(JournalTest, OnlyAnEndThatIsDoneIsAnEvent) {
  {
    Journal journal = open();
    journal.record(of_step(1));
    journal.end("stopped");
    EXPECT_EQ(events(), Words{});
    journal.end("done");
  }
  EXPECT_EQ(lines("events.jsonl").at(0).at("step"), 1);
  EXPECT_EQ(lines("goodput.jsonl").back().at("ended"), "done");
}

TEST_F(JournalTest, AnEventThatCannotBeWrittenIsAWarning) {
  std::filesystem::create_directories(run_dir / "events.jsonl");
  open().announce_stop(0);
  EXPECT_TRUE(has(console(), " warning: cannot write " + (run_dir / "events.jsonl").string() + ": ")) << console();
}

TEST_F(JournalTest, TakesOverTheFilesOfAnOlderVersion) {
  write_file(run_dir / "log.txt", "earlier\n");
  write_file(run_dir / "plan.yaml", "mesh:\n  dp: 2\n");
  write_file(run_dir / "plan.json", "{}");
  open({}, /*last_step=*/1);
  log_info("later");
  EXPECT_TRUE(console().starts_with("earlier\n") && console().ends_with(" info: later\n")) << console();
  EXPECT_TRUE(has(content(run_dir / "decisions.yaml"), "\n  dp: 1\n")) << "of this start";
  EXPECT_EQ(content(run_dir / "forecast.json"), "{}");
  for (const char* older : {"log.txt", "plan.yaml", "plan.json"}) {
    EXPECT_FALSE(std::filesystem::exists(run_dir / older)) << older;
    EXPECT_TRUE(RunDirectory::is_own(older)) << older;
  }
}

TEST_F(JournalTest, ALockThatCannotBeHeldIsAWarning) {
  inject_faults("flock:/lock:ENOLCK");
  EXPECT_EQ(train({"train.steps=1"}), RunEnd::Done);
  EXPECT_TRUE(has(log, " warning: " + (run_dir / "lock").string() + " cannot be locked (No locks available)")) << log;
}

TEST_F(JournalTest, WarnsOfSettingsThatTrainLess) {
  const auto warned = [&](Words settings) {
    settings.emplace_back("train.steps=1");
    std::filesystem::remove_all(run_dir);
    train(settings);
    return log;
  };
  const std::string of_betas =
      " warning: optimizer.betas[1] is 0.999, but the second moment is in bf16, which has too few digits to decay by "
      "that: set optimizer.state_dtype: fp32, train.stochastic_rounding: true, or betas[1] of at most 0.99\n";
  const Words bf16 = {"train.precision=bf16", "optimizer.betas=[0.9, 0.999]"};
  EXPECT_TRUE(has(warned(bf16), of_betas)) << log;
  EXPECT_FALSE(has(warned({bf16[0], bf16[1], "optimizer.state_dtype=fp32"}), "warning")) << log;
  EXPECT_FALSE(has(warned({bf16[0], bf16[1], "train.stochastic_rounding=true"}), "warning")) << log;
  EXPECT_TRUE(
      has(warned({"optimizer.learning_rate=0"}), " warning: optimizer.learning_rate is 0: steps do not change"));
}

TEST_F(JournalTest, SaysWhatIsFrozenAndWhatMovesNothing) {
  train({"train.steps=1", "train.freeze=[\"*embed*\"]", "parallel.fsdp.offload={to: host}"});
  EXPECT_TRUE(has(log, " of them trained), mesh dp=1,cp=1,tp=1, ")) << log;
  EXPECT_TRUE(has(log, " info: parallel.fsdp.offload to host has no effect")) << log;
}

TEST_F(JournalTest, SaysThatStateAloneMovesNothingOnTheHost) {
  train({"train.steps=1", "parallel.fsdp.offload={to: host, parameters: false}"});
  EXPECT_TRUE(has(log, " info: parallel.fsdp.offload to host has no effect")) << log;
  EXPECT_FALSE(has(log, "the optimizer's state alone")) << log;
}

}  // namespace
}  // namespace meshtrain::testing
