// Sequences that are longer than a model has positions, as users see them in the log.

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class TrainPositions : public TrainProgram {};

TEST_F(TrainPositions, SequencesBeyondThePositionsOfTheModelAreNamed) {
  const std::string line =
      "meshtrain: warning: train.sequence_length 16 is beyond the model's max_position_embeddings 12\n";
  EXPECT_EQ(count(train(2, {"--set", "model.max_position_embeddings=12", "--mesh", "dp=2"}).err, line), 1);
  EXPECT_EQ(count(run_meshtrain({"train", recipe, "--check", "--set", "model.max_position_embeddings=12"}).err, line),
            1);
  run_dir = path("other");
  EXPECT_FALSE(has(train(1, {"--set", "model.max_position_embeddings=16"}).err, "warning"));
}

}  // namespace
}  // namespace meshtrain::testing
