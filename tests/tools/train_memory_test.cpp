// A model for which the memory of a rank does not suffice.

#include <sstream>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class TrainMemory : public TrainProgram {
 protected:
  /// Returns the lines of the program itself.
  static std::vector<std::string> own_lines(const std::string& text) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("meshtrain: ", 0) == 0) found.push_back(line);
    }
    return found;
  }

  /// The weights of 8,000,000 rows and their gradients and states take gigabytes, which the limit does not allow.
  const Words large = {"--mesh", "dp=2", "--set", "model.vocab_size=8000000", "--set", "parallel.fsdp.mode=no_shard"};
  const std::string limit = "ulimit -v 3000000";
};

TEST_F(TrainMemory, IsMissedBeforeTheStartAndByTheErrorThatNamesWhatHelps) {
  const Ending ending = train(2, large, limit);
  EXPECT_EQ(ending.status, 1) << ending.err;
  const std::vector<std::string> lines = own_lines(ending.err);
  ASSERT_GE(lines.size(), 2u) << ending.err;
  const std::string& warning = lines.front();
  EXPECT_EQ(warning.rfind("meshtrain: warning: a step needs ", 0), 0u) << warning;
  EXPECT_TRUE(has(warning, " GiB on a rank, which has ") && has(warning, " GiB free: a rank needs less with "))
      << warning;
  const std::string& error = lines.back();
  EXPECT_TRUE(has(error, "out of memory: the host refused ")) << error;
  for (const std::string& line : {warning, error}) {
    EXPECT_TRUE(has(line, "a rank needs less with parallel.fsdp.mode=full_shard (")) << line;
    EXPECT_TRUE(has(line, ", more ranks, tp=2 (")) << line;
    EXPECT_FALSE(has(line, "train.precision=bf16_mixed")) << "the weights are too large, not the activations: " << line;
    EXPECT_FALSE(has(line, "more ranks, dp=4")) << "its ranks share the weights of a host: " << line;
    EXPECT_FALSE(has(line, "train.micro_batch")) << "it is 1: " << line;
  }
}

TEST_F(TrainMemory, IsNotMissedWhereItSuffices) {
  const Ending ending = train(2, {"--mesh", "dp=2", "--set", "train.steps=1"}, limit);
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(own_lines(ending.err).empty()) << ending.err;
}

TEST_F(TrainMemory, ACheckSaysTheSame) {
  Words words = large;
  words.insert(words.end(), "--check");
  const Ending ending = train(1, words, limit);
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.err, "meshtrain: warning: a step needs ") &&
              has(ending.err, " GiB free: a rank needs less with "))
      << ending.err;
}

}  // namespace
}  // namespace meshtrain::testing
