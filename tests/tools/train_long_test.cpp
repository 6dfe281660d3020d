#include "tests/tools/train_program.h"

// A sequence whose activations do not fit into one rank's memory.
namespace meshtrain::testing {
namespace {

/// Limit of each rank's address space, with libraries, thread stacks and arenas.
constexpr int64_t kLimitKiB = int64_t{2} << 20;  // one rank needs 2.8 GiB, each of four 1.3

/// One narrow layer, whose wide feed-forward part needs much memory and little time.
constexpr const char* kLongRecipe = R"(model:
  family: llama
  hidden_size: 32
  intermediate_size: 1536
  num_hidden_layers: 1
  num_attention_heads: 1
  num_key_value_heads: 1
  vocab_size: 64
data:
  tokens: long.bin
  dtype: uint8
  layout: records
train:
  sequence_length: 65536
  global_batch: 1
  steps: 1
optimizer:
  learning_rate: 1.0e-3
)";

class TrainLong : public TrainProgram {
 protected:
  TrainLong() {
    recipe = path("long.yaml");
    write("long.yaml", kLongRecipe);
    std::string tokens;
    for (int i = 0; i < 65537; ++i) tokens += static_cast<char>(i % 61);
    write("long.bin", tokens);
  }

  Ending train_within_limit(int ranks) const {
    return run_program(
        command(ranks, {"--mesh", "cp=" + std::to_string(ranks)}, "ulimit -v " + std::to_string(kLimitKiB)));
  }
};

TEST_F(TrainLong, SequenceOf65536TokensIsTooLongForOneRank) {
  const Ending ending = train_within_limit(1);
  EXPECT_EQ(ending.status, 1) << ending.err;
  const std::string message = ending.err.substr(ending.err.find("meshtrain: rank 0 "));  // after the warning
  EXPECT_EQ(message.rfind("meshtrain: rank 0 (dp=0 cp=0 tp=0): step 1, backward of ", 0), 0u) << message;
  EXPECT_TRUE(has(message, ": out of memory: the host refused ")) << message;
  EXPECT_TRUE(has(message, "more ranks, cp=2 (")) << message;
  expect_steps(metrics(), 0);
}

TEST_F(TrainLong, SequenceOf65536TokensTrainsOnFourRanks) {
  const Ending ending = train_within_limit(4);
  EXPECT_EQ(ending.status, 0) << ending.err;
  expect_steps(metrics(), 1);
}

}  // namespace
}  // namespace meshtrain::testing
