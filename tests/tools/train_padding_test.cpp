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

}  // namespace
}  // namespace meshtrain::testing
