// Failures on GPUs end the run with one message, and no process remains.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

class FailureOnGpu : public TrainProgram {
 protected:
  void SetUp() override { setenv("MESHTRAIN_EMULATED_GPUS", "4", 1); }
  void TearDown() override { unsetenv("MESHTRAIN_EMULATED_NCCL_FAIL"); }
};

// During a step without a graph, and during a replay. "1:N" is rank 1's Nth call of NCCL.
TEST_F(FailureOnGpu, OfNcclEndsEveryRankWithWhereItHappened) {
  for (const bool graph : {false, true}) {
    setenv("MESHTRAIN_EMULATED_NCCL_FAIL", graph ? "1:150" : "1:40", 1);
    std::filesystem::remove_all(run_dir);
    Words words = {"--mesh", "dp=2,tp=2", "--set", "device=cuda", "--set", "train.steps=2000"};
    if (graph) words.insert(words.end(), {"--set", "train.cuda_graph=true"});
    const Ending ending = train(4, words);
    EXPECT_NE(ending.status, 0);
    EXPECT_TRUE(has(ending.err, "NCCL: unhandled system error")) << ending.err;
    EXPECT_TRUE(has(ending.err, "rank 1 (dp=")) << ending.err;
    EXPECT_TRUE(has(ending.err, "step ")) << ending.err;
  }
}

TEST_F(FailureOnGpu, ARankThatIsKilledTakesTheOthersAlong) {
  Program program(command(4, {"--mesh", "dp=2,tp=2", "--set", "device=cuda", "--set", "train.steps=100000"},
                          "[ \"$OMPI_COMM_WORLD_RANK\" != 2 ] || (while [ ! -s " +
                              (run_dir / "metrics.jsonl").string() + " ]; do sleep 0.05; done; kill -9 $$) &"));
  const Ending ending = program.wait();
  EXPECT_EQ(count(ending.err, "rank 2 (dp=1 cp=0 tp=0) is gone without a word"), 1) << ending.err;
}

TEST_F(FailureOnGpu, AGpuThatIsTooSmallIsTold) {
  const std::string message =
      complaint(1, {"--set", "device=cuda", "--set", "model.vocab_size=60000000", "--set", "model.hidden_size=32"}, 1);
  EXPECT_TRUE(has(message, "out of memory: the GPU refused ")) << message;
}

TEST_F(FailureOnGpu, OneGpuForTwoRanksIsNoneForNccl) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  const std::string message =
      complaint(2, {"--mesh", "dp=2", "--set", "device=cuda", "--set", "parallel.backend=nccl"});
  EXPECT_TRUE(has(message, "parallel.backend: nccl needs a GPU for each rank, but ranks 0 and 1 share one")) << message;
}

}  // namespace
}  // namespace meshtrain::testing
