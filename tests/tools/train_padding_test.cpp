// The padding token, as users see it in the log.

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class TrainPadding : public TrainProgram {};

TEST_F(TrainPadding, ThatARowIsTrainedIsSaidOnceAndTheSameOnEveryMesh) {
  // The tokens are 0 to 49, repeated; a step has 4 samples of 16 inputs. The 40 first is an input of the third sample.
  const std::string line =
      "step 1 has the padding token, pad_token_id 40, 1 time in its inputs: its row of the embedding is trained; "
      "transformers gives it no gradient there, as model.freeze_padding_row: true does\n";
  for (const Words& mesh : {Words{"dp=1"}, {"dp=2"}, {"tp=2"}, {"cp=2"}}) {
    const int ranks = mesh[0] == "dp=1" ? 1 : 2;
    const Ending ending = train(ranks, {"--set", "model.pad_token_id=40", "--mesh", mesh[0]});
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(count(ending.out, line), 1) << ending.out;
    EXPECT_EQ(count(ending.out, "padding"), 2) << "its two words in one line: " << ending.out;
    std::filesystem::remove_all(run_dir);
  }
}

TEST_F(TrainPadding, AFrozenRowStaysAndResumesTellOfIt) {
  const Words frozen = {"--set", "model.pad_token_id=40", "--set", "model.freeze_padding_row=true"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=2", "--set", "train.steps=2"}).status, 0);
  const Ending resumed = train(1, with(frozen, {"--resume", "--set", "checkpoint.every=2"}));
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(has(resumed.out, "  model.pad_token_id: 40, was none\n")) << resumed.out;
  EXPECT_TRUE(has(resumed.out, "  model.freeze_padding_row: true, was false\n")) << resumed.out;
  EXPECT_FALSE(has(resumed.out, "padding token")) << resumed.out;
  run_dir = path("other");
  EXPECT_EQ(complaint(1, {"--set", "model.freeze_padding_row=true"}),
            "--set model.freeze_padding_row=true: true needs model.pad_token_id, the token whose row it is");
  EXPECT_EQ(complaint(1, {"--set", "model.pad_token_id=64"}),
            "--set model.pad_token_id=64: 64 is no token of vocab_size 64");
}

}  // namespace
}  // namespace meshtrain::testing
