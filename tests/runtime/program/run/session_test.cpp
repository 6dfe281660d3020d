#include "runtime/program/run/session.h"

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "tests/runtime/program/run/run_folder.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class SessionTest : public RunFolder {};

TEST_F(SessionTest, AResumedRunHasTheNumbersOfAnUnbrokenOne) {
  train({"train.steps=6"});
  EXPECT_FALSE(fs::exists(run_dir / "checkpoints")) << "the recipe asks for no checkpoint";
  const std::vector<double> losses = column("loss"), norms = column("grad_norm");

  run_dir = path("parts");
  train({"train.steps=4", "checkpoint.every=2"});
  train({"train.steps=6", "checkpoint.every=2"}, resumed());
  EXPECT_TRUE(has(log, " info: resumed after step 4, from " + checkpoint("step-00000004").string() + " in ")) << log;
  EXPECT_TRUE(has(log, " info:   train.steps: 6, was 4\n")) << log;
  EXPECT_EQ(column("loss"), losses) << "to the bit";
  EXPECT_EQ(column("grad_norm"), norms);
}

TEST_F(SessionTest, ADoneRunThatIsResumedMakesNoStep) {
  train({"checkpoint.every=4"});
  const std::string metrics = content(run_dir / "metrics.jsonl");
  EXPECT_EQ(train({"checkpoint.every=4"}, resumed()), RunEnd::Done);
  EXPECT_TRUE(has(log, "the checkpoint has all steps of train.steps: nothing is left to do\n")) << log;
  EXPECT_EQ(content(run_dir / "metrics.jsonl"), metrics);
  EXPECT_EQ(failure<InputError>({"train.steps=3"}, resumed()).substr(0, 20), "train.steps: 3, but ");
}

TEST_F(SessionTest, ARunThatIsResumedWithoutACheckpointBeginsAnew) {
  const std::string said = " info: --resume: no checkpoint in " + checkpoint("").parent_path().string();
  train({"train.steps=3"}, resumed());
  EXPECT_TRUE(has(log, said + ": begins at step 1\n")) << log;
  train({"train.steps=2"}, resumed());
  EXPECT_TRUE(has(log, said + ": begins at step 1; replaces 3 lines of metrics.jsonl\n")) << log;
  EXPECT_EQ(lines("metrics.jsonl").size(), 2u);
}

// Like an unmounted disk: its folder exists and is empty.
TEST_F(SessionTest, ARunWhoseCheckpointsAreGoneIsNotBegunAnew) {
  train({"train.steps=7", "checkpoint.every=3"});
  fs::rename(run_dir / "checkpoints", path("unmounted"));
  fs::create_directory(run_dir / "checkpoints");
  const auto before = contents(run_dir);
  EXPECT_TRUE(has(failure<InputError>({"checkpoint.every=3"}, resumed()), "mount the disk with the checkpoints"));
  EXPECT_EQ(contents(run_dir), before);
}

TEST_F(SessionTest, ContinuesWithoutALog) {
  train({"train.steps=2", "checkpoint.every=2"});
  fs::remove(run_dir / "console.log");
  fs::create_directory(run_dir / "console.log");
  EXPECT_EQ(train({}, resumed()), RunEnd::Done);
  EXPECT_EQ(lines("metrics.jsonl").size(), 4u);
}

TEST_F(SessionTest, TheSavedRecipeOfARunResumesThatRun) {
  train({"train.steps=2", "checkpoint.every=2"});
  train_recipe(load_recipe(run_dir / "recipe.yaml", {"train.steps=3"}, ""), resumed());
  EXPECT_TRUE(has(log, "resumed after step 2, from ")) << log;
  EXPECT_EQ(lines("metrics.jsonl").size(), 3u);
}

TEST_F(SessionTest, TheSavedRecipeOfAnOlderVersionResumesThatRun) {
  train({"train.steps=2", "checkpoint.every=2"});
  fs::rename(run_dir / "decisions.yaml", run_dir / "plan.yaml");
  const Recipe saved = load_recipe(run_dir / "recipe.yaml", {"train.steps=3"}, "");
  EXPECT_EQ(fs::canonical(RunDirectory::folder_of(saved, "")), fs::canonical(run_dir));
  train_recipe(saved, resumed());
  EXPECT_EQ(lines("metrics.jsonl").size(), 3u);
  EXPECT_TRUE(fs::exists(run_dir / "decisions.yaml"));
  EXPECT_FALSE(fs::exists(run_dir / "plan.yaml"));
}

TEST_F(SessionTest, ADirectoryThatIsInUseOrHoldsARunIsRefused) {
  {
    const RunDirectory other(run_dir, /*resume=*/false);
    EXPECT_TRUE(has(failure<InputError>({}), " is in use by another run"));
  }
  train();
  const auto before = contents(run_dir);
  EXPECT_TRUE(has(failure<InputError>({}), " holds a run; continue it with --resume"));
  EXPECT_EQ(contents(run_dir), before);
}

TEST_F(SessionTest, EndsWithTheCommandsThatReadWhatItLeft) {
  const std::string report = " info: done; next: meshtrain report " + run_dir.string();
  train();
  EXPECT_TRUE(has(log, report + "\n")) << log;
  run_dir = path("saved");
  train({"checkpoint.every=4"});
  EXPECT_TRUE(has(log, ", meshtrain generate " + run_dir.string() + ", meshtrain checkpoint export " +
                           run_dir.string() + " FOLDER\n"))
      << log;
  run_dir = path("exported");
  train({"train.export=" + path("my weights").string()});
  EXPECT_TRUE(has(log, ", meshtrain generate '" + path("my weights").string() + "'\n")) << log;
  EXPECT_TRUE(fs::exists(path("my weights") / "model.safetensors"));
}

// The last checkpoint is durable before the export, so a failure is not an error of the recipe.
TEST_F(SessionTest, AnExportThatFailsIsAFailureOfAllRanks) {
  Session session(recipe({"train.export=" + path("weights").string()}), Group(), {.run_dir = run_dir});
  session.resume();
  session.announce();
  session.train(StopRequest(), std::chrono::steady_clock::now());
  write_file(path("weights/mine.txt"), "x");
  EXPECT_TRUE(has(message<AgreedError>([&] { session.export_weights(); }), path("weights").string()));
  EXPECT_EQ(checkpoints(), Words{"step-00000004"}) << "although the recipe asks for none";
}

}  // namespace
}  // namespace meshtrain::testing
