#include "runtime/program/run/resume.h"

#include "mesh/base/error.h"
#include "runtime/program/run/run_files.h"
#include "runtime/training/checkpoint/manifest_writer.h"
#include "tests/runtime/program/run/run_folder.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public RunFolder {
 protected:
  CheckpointHead head_of(const Words& settings) const {
    const Recipe asked = recipe(settings);
    return describe_run(on_mesh(asked, layout_), layout_);
  }
  /// Writes the checkpoint of `step` of a run of `settings`, without pieces.
  fs::path save(int64_t step, const Words& settings = {}) const {
    CheckpointHead head = head_of(settings);
    head.state = {.step = step, .num_samples = 4 * step};
    write_file(folder_.step(step) / "manifest.json", manifest_text(head, {}));
    return folder_.step(step);
  }
  ResumeCandidate candidate(const fs::path& checkpoint, const Words& settings, int64_t num_steps = 4) const {
    return resume_candidate(checkpoint, head_of(settings), num_steps);
  }
  std::string refused(const fs::path& checkpoint, const Words& settings, int64_t num_steps = 4) const {
    return message<InputError>([&] { candidate(checkpoint, settings, num_steps); });
  }
  /// Returns the beginning of a refusal.
  static std::string contradiction(const fs::path& checkpoint) {
    return "the recipe contradicts the checkpoint " + checkpoint.string() + ": ";
  }

  const MeshLayout layout_{{{"dp", 1}, {"cp", 1}, {"tp", 1}}};
  const CheckpointFolder folder_{RunDirectory::checkpoints_of(run_dir)};
};

TEST_F(ResumeTest, ListsTheChangesThatAreAllowed) {
  const fs::path saved = save(2);
  EXPECT_EQ(candidate(saved, {}).point.changes, Words{});
  const ResumeCandidate changed = candidate(saved, {"optimizer.learning_rate=1e-3", "train.steps=9"}, 9);
  EXPECT_EQ(changed.point.changes, (Words{"train.steps: 9, was 4", "optimizer.learning_rate: 0.001, was 0.01"}));
  EXPECT_EQ(changed.point.state.num_samples, 8);
  EXPECT_EQ(changed.point.folder, saved);
  EXPECT_EQ(changed.point.warning, "");
  EXPECT_EQ(candidate(saved, {"model.pad_token_id=40", "model.freeze_padding_row=true"}).point.changes,
            (Words{"model.freeze_padding_row: true, was false", "model.pad_token_id: 40, was none"}))
      << "a key of the model that may change";
}

TEST_F(ResumeTest, RefusesAnotherModelAndAnEndBeforeTheCheckpoint) {
  const fs::path saved = save(3);
  const std::string other = refused(saved, {"model.num_hidden_layers=2", "optimizer.name=sgd"});
  EXPECT_EQ(other, contradiction(saved) +
                       "model.num_hidden_layers: 2, was 1; optimizer.name: sgd, was adamw: use "
                       "the recipe of that run, or begin another run with --run-dir");
  EXPECT_TRUE(has(refused(saved, {}, 2), "train.steps: 2, but " + saved.string() + " is of a later step: "));
}

TEST_F(ResumeTest, RefusesOtherTokensUnderTheSameName) {
  const fs::path saved = save(2);
  const std::string before = describe(fingerprint(path("tokens.bin")));
  write_file(path("tokens.bin"), std::string(90 * 17, '\1'));
  const std::string after = describe(fingerprint(path("tokens.bin")));
  EXPECT_TRUE(has(refused(saved, {}), contradiction(saved) + "data.tokens: a file of " + after + ", was one of " +
                                          before + ": use the recipe"));
}

TEST_F(ResumeTest, TheSameTokensElsewhereAreTheSame) {
  const fs::path saved = save(2);
  fs::copy(path("tokens.bin"), path("moved.bin"));
  EXPECT_EQ(refused(saved, {"data.tokens=" + path("moved.bin").string()}), "");
}

TEST_F(ResumeTest, ALossMaskThatComesOrGoesIsOneDifference) {
  write_file(path("mask"), std::string(100 * 17, '\1'));
  const std::string setting = "data.loss_mask=" + path("mask").string();
  const std::string with = describe(fingerprint(path("mask")));
  EXPECT_TRUE(has(refused(save(2), {setting}), "data.loss_mask: a file of " + with + ", was none"));
  EXPECT_TRUE(has(refused(save(3, {setting}), {}), "data.loss_mask: none, was a file of " + with));
}

TEST_F(ResumeTest, AMixtureInThePlaceOfOneFileIsOneDifference) {
  const fs::path saved = save(4);
  const std::string tokens = path("tokens.bin").string();
  EXPECT_EQ(refused(saved, {"data={tokens: null, mixture: [{tokens: " + tokens + ", weight: 1}]}"}),
            contradiction(saved) + "data.mixture: a mixture of 1 file (" + tokens + "), was the one file " + tokens +
                ": use the recipe of that run, or begin another run with --run-dir");
}

// A checkpoint of step 0 has only weights.
TEST_F(ResumeTest, OnlyAnotherModelContradictsACheckpointOfStepZero) {
  const fs::path saved = save(0);
  write_file(path("tokens.bin"), std::string(90 * 17, '\1'));
  EXPECT_EQ(refused(saved, {"train.seed=7", "optimizer.name=sgd"}), "");
  EXPECT_NE(refused(saved, {"model.num_hidden_layers=2"}), "");
}

TEST_F(ResumeTest, WarnsWhenOtherStepsMoveTheSchedule) {
  const std::string cosine = "schedule={name: cosine, min_ratio: 0.1}";
  const fs::path saved = save(4, {cosine, "train.steps=6"});
  EXPECT_EQ(candidate(saved, {cosine, "train.steps=12"}, 12).point.warning,
            "schedule.name: cosine is spread over train.steps, now 12 instead of 6: step 5 gets a learning "
            "rate of 0.00775 instead of 0.00325; schedule.total_steps: 6 keeps the earlier schedule");
  const std::string moved = candidate(saved, {cosine, "train.steps=6", "schedule.total_steps=12"}, 6).point.warning;
  EXPECT_TRUE(has(moved, " over schedule.total_steps, now 12 instead of 6: step 5 gets ")) << moved;
  EXPECT_EQ(candidate(saved, {cosine, "train.steps=8", "schedule.total_steps=6"}, 8).point.warning, "") << "kept";
  EXPECT_EQ(candidate(save(2), {"train.steps=9"}, 9).point.warning, "")
      << "a constant rate has no schedule that could move";
}

TEST_F(ResumeTest, ADamagedManifestIsNamedWithTheCheckpointsThatRemain) {
  const fs::path first = save(3), last = save(6);
  write_file(last / "manifest.json", "{");
  for (const std::string& said : {refused(last, {}), message<InputError>([&] { read_saved_recipe(last); })}) {
    EXPECT_TRUE(
        said.ends_with("; the folder also has checkpoints of step 3: resume from one of them with "
                       "--resume-step N, or restore the damaged one from a backup"))
        << said;
  }
  fs::remove_all(first);
  EXPECT_TRUE(refused(last, {}).ends_with("; the folder has no other checkpoint: begin another run with --run-dir"));
}

TEST_F(ResumeTest, ResumesFromTheRequestedStepOrTheNewest) {
  EXPECT_EQ(checkpoint_to_resume(folder_, std::nullopt), std::nullopt);
  EXPECT_EQ(message<InputError>([&] { checkpoint_to_resume(folder_, 4); }),
            "--resume-step 4: " + folder_.step(4).string() + " does not exist; there are no checkpoints");
  save(3);
  save(10);
  EXPECT_EQ(checkpoint_to_resume(folder_, std::nullopt), folder_.step(10));
  EXPECT_EQ(checkpoint_to_resume(folder_, 3), folder_.step(3));
  EXPECT_TRUE(has(message<InputError>([&] { checkpoint_to_resume(folder_, 4); }),
                  " does not exist; there are checkpoints of steps 3, 10"));
}

TEST_F(ResumeTest, MetricsBeyondTheFirstCheckpointsShowThatThereWasOne) {
  std::string metrics;
  for (int step = 1; step <= 7; ++step) metrics += "{\"step\":" + std::to_string(step) + "}\n";
  write_file(run_dir / "metrics.jsonl", metrics);
  EXPECT_EQ(message<InputError>([&] { check_beginning(run_dir, 3); }),
            "--resume: " + (run_dir / "metrics.jsonl").string() + " has steps up to 7, but there is no checkpoint in " +
                folder_.folder().string() +
                ": mount the disk with the checkpoints, or choose another --run-dir to begin at step 1");
  EXPECT_NO_THROW(check_beginning(run_dir, 4)) << "that of step 4 may not have been complete before step 9";
  EXPECT_NO_THROW(check_beginning(run_dir, 0));
  EXPECT_NO_THROW(check_beginning(path("none"), 3));
}

TEST_F(ResumeTest, SaysWhichCheckpointsAreSetAside) {
  EXPECT_EQ(describe_set_aside({}), "");
  EXPECT_EQ(describe_set_aside({6}), "the checkpoint of step 6, which is later, is set aside as abandoned-step-...");
  EXPECT_EQ(describe_set_aside({6, 8}),
            "the checkpoints of steps 6, 8, which are later, are set aside as abandoned-step-...");
}

}  // namespace
}  // namespace meshtrain::testing
