// The learning rates of a run that is made longer.

#include "tests/tools/train_resume.h"

namespace meshtrain::testing {
namespace {

TEST_F(TrainResume, WarnsWhenMoreStepsMoveTheSchedule) {
  const Words cosine = {"--set", "schedule={name: cosine, min_ratio: 0.1}", "--set", "checkpoint.every=2"};
  const auto longer = [&](const Words& more) {
    Words words = cosine;
    words.insert(words.end(), {"--resume"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  run(1, "dp=1", 6, cosine);
  const std::vector<double> planned = column(metrics(), "learning_rate");
  std::filesystem::remove_all(checkpoints() / "step-00000006");
  const Ending checked =
      train(1, {"--check", "--resume", "--set", "train.steps=12", "--set", "schedule={name: cosine, min_ratio: 0.1}"});
  const std::string warning =
      "warning: schedule.name: cosine is spread over train.steps, now 12 instead of 6: step 5 gets a learning rate of "
      "0.00775 instead of 0.00325; schedule.total_steps: 6 keeps the earlier schedule\n";
  EXPECT_TRUE(has(checked.out, warning)) << checked.out;
  const Ending moved = train(1, longer({"--check", "--set", "train.steps=6", "--set", "schedule.total_steps=12"}));
  EXPECT_TRUE(
      has(moved.out,
          "warning: schedule.name: cosine is spread over schedule.total_steps, now 12 instead of 6: step 5 gets "
          "a learning rate of 0.00775 instead of 0.00325"))
      << moved.out;
  // With the plan kept, the same rates, and the last one behind it.
  const Ending kept = run(1, "dp=1", 8, longer({"--set", "schedule.total_steps=6"}));
  EXPECT_FALSE(has(kept.out + kept.err, "is spread over")) << kept.out;
  const std::vector<double> rates = column(metrics(), "learning_rate");
  ASSERT_EQ(rates.size(), 8u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(rates[i], planned[i]) << "step " << i + 1;
  EXPECT_DOUBLE_EQ(rates[7], 0.001);
  // A schedule that does not depend on train.steps.
  run_dir = path("constant");
  run(1, "dp=1", 4, {"--set", "checkpoint.every=2"});
  EXPECT_FALSE(has(run(1, "dp=1", 6, {"--resume"}).out, "planned for"));
}

}  // namespace
}  // namespace meshtrain::testing
