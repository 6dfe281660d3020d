// Failures on GPUs end the run with one message, and no process remains.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
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
  EXPECT_EQ(count(ending.err, "rank 2 (dp=1 cp=0 tp=0) ended without a message"), 1) << ending.err;
}

// Over NCCL, which the host does not wait for, and for tensors that are staged in host memory. A stage is named with
// both ends of the link that the others wait for.
TEST_F(FailureOnGpu, ARankThatIsStoppedIsNamed) {
  struct Case {
    std::string mesh, backend, rank, awaited;
  };
  for (const Case& it : {Case{"dp=2", "nccl", "rank 1 (dp=1 cp=0 tp=0) on ", ""},
                         {"dp=2", "mpi", "rank 1 (dp=1 cp=0 tp=0) on ", ""},
                         {"pp=2", "nccl", "rank 1 (pp=1 dp=0 cp=0 tp=0) on ", " of link pp "}}) {
    SCOPED_TRACE(it.mesh + " over " + it.backend);
    std::filesystem::remove_all(run_dir);
    const std::string process = path("process." + it.mesh + "." + it.backend);
    Program program(command(2,
                            {"--mesh", it.mesh, "--set", "device=cuda", "--set", "parallel.backend=" + it.backend,
                             "--set", "train.steps=100000", "--set", "parallel.stall_warning=2", "--set",
                             "parallel.timeout=5", "--set", "model.num_hidden_layers=2"},
                            "[ \"$OMPI_COMM_WORLD_RANK\" != 1 ] || echo $$ >" + process));
    for (int looks = 0; metrics().size() < 5 && looks < 3000; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ASSERT_GE(metrics().size(), 5u);
    kill(std::stoi(content(process)), SIGSTOP);
    const Ending ending = program.wait();
    EXPECT_EQ(ending.status, 1) << ending.err;
    const std::string cause = ": its process is stopped, by a signal or a debugger; ";
    EXPECT_TRUE(has(ending.err, "meshtrain: warning: " + it.rank) && has(ending.err, cause)) << ending.err;
    EXPECT_TRUE(has(ending.err, it.awaited)) << ending.err;
    EXPECT_TRUE(has(ending.err, "; the run ends after parallel.timeout, 5 s")) << ending.err;
    EXPECT_TRUE(std::filesystem::exists(run_dir / "flight" / "rank-00000.jsonl"));
  }
}

TEST_F(FailureOnGpu, AGpuThatIsTooSmallIsTold) {
  const Ending ending =
      train(1, {"--set", "device=cuda", "--set", "model.vocab_size=60000000", "--set", "model.hidden_size=32"});
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_EQ(ending.err.rfind("meshtrain: warning: a step needs ", 0), 0u) << ending.err;
  EXPECT_TRUE(has(ending.err, " free: a rank needs less with parallel.fsdp.offload={to: host")) << ending.err;
  const size_t error = ending.err.find("out of memory: the GPU refused ");
  ASSERT_NE(error, std::string::npos) << ending.err;
  EXPECT_NE(ending.err.find("; a rank needs less with ", error), std::string::npos) << ending.err;
}

TEST_F(FailureOnGpu, OneGpuForTwoRanksIsNoneForNccl) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  const std::string message =
      complaint(2, {"--mesh", "dp=2", "--set", "device=cuda", "--set", "parallel.backend=nccl"});
  EXPECT_TRUE(has(message, "parallel.backend: nccl needs a GPU for each rank, but ranks 0 and 1 share one")) << message;
}

}  // namespace
}  // namespace meshtrain::testing
