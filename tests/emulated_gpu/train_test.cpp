// Training with device: cuda on the emulated GPU, against the same on the CPU.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/full_run.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

class TrainOnGpu : public TrainProgram {
 protected:
  /// The losses and gradient norms of a run.
  struct Steps {
    std::vector<double> losses, norms;
    std::string log;
  };

  Steps steps(int ranks, const Words& arguments) const {
    std::filesystem::remove_all(run_dir);
    const Ending ending = train(ranks, arguments);
    EXPECT_EQ(ending.status, 0) << ending.err;
    Steps steps;
    for (const nlohmann::json& entry : metrics()) {
      steps.losses.push_back(entry.at("loss").get<double>());
      steps.norms.push_back(entry.at("grad_norm").get<double>());
    }
    steps.log = ending.out + ending.err;
    return steps;
  }

  static Words on(const std::string& device, Words arguments) {
    arguments.insert(arguments.end(), {"--set", "device=" + device});
    return arguments;
  }
  static Words on_gpu(const Words& arguments) { return on("cuda", arguments); }
  static Words on_cpu(const Words& arguments) { return on("cpu", arguments); }

  static void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], tolerance * expected[i]) << "step " << i;
  }
};

/// A mesh, and whether each rank has its own GPU, so that they communicate by NCCL.
struct Case {
  const char* mesh;
  int ranks;
  bool own_gpus;
  Words settings = {};
};

void PrintTo(const Case& at, std::ostream* out) {
  *out << at.mesh << (at.own_gpus ? ", nccl" : ", one GPU");
  for (const std::string& setting : at.settings) *out << " " << setting;
}

class TrainOnGpuMesh : public TrainOnGpu, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override { setenv("MESHTRAIN_EMULATED_GPUS", std::to_string(GetParam().own_gpus ? 4 : 1).c_str(), 1); }

  Words arguments() const {
    Words words = {"--mesh", GetParam().mesh};
    for (const std::string& setting : GetParam().settings) words.insert(words.end(), {"--set", setting});
    return words;
  }
};

TEST_P(TrainOnGpuMesh, AsOnTheCpu) {
  if (!is_in_sample()) GTEST_SKIP() << "every other mesh in a short run";
  for (const auto& [precision, tolerance] : {std::pair{"fp32", 2e-6}, std::pair{"bf16_mixed", 1e-2}}) {
    Words words = arguments();
    words.insert(words.end(), {"--set", std::string("train.precision=") + precision});
    const Steps expected = steps(GetParam().ranks, on_cpu(words)), found = steps(GetParam().ranks, on_gpu(words));
    expect_near(found.losses, expected.losses, tolerance);
    expect_near(found.norms, expected.norms, 5 * tolerance);
    EXPECT_TRUE(has(found.log, "device cuda, emulated GPU")) << found.log;
    EXPECT_EQ(has(found.log, "in memory that its communicators register"),
              has(::testing::PrintToString(GetParam()), "user_buffers"));
    if (GetParam().ranks > 1) {
      EXPECT_TRUE(has(found.log, GetParam().own_gpus ? "through nccl" : "through host memory and mpi")) << found.log;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, TrainOnGpuMesh,
    ::testing::Values(
        Case{"dp=1", 1, true}, Case{"dp=2,tp=2", 4, false}, Case{"cp=2", 2, false}, Case{"dp=2,tp=2", 4, true},
        Case{"tp=2,cp=2", 4, true}, Case{"dp=2,cp=2", 4, true},
        Case{"dp=2", 2, true, {"parallel.fsdp.mode=full_shard"}},
        Case{"dp=2,tp=2", 4, true, {"parallel.fsdp.mode=full_shard", "parallel.nccl_user_buffers=true"}},
        Case{"dp=2,cp=2", 4, true, {"parallel.fsdp.mode=full_shard", "parallel.nccl_user_buffers=symmetric"}},
        Case{"dp=2", 2, true, {"parallel.fsdp.mode=shard_grad_op", "parallel.nccl_user_buffers=true"}}));

// LibTorch divides loops among OpenMP's threads, for example a copy of 32,768 elements.
TEST_F(TrainOnGpu, WithSeveralThreadsAsOnTheCpu) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  setenv("OMP_NUM_THREADS", "2", 1);
  const Words words = {"--set", "model.vocab_size=512", "--set", "model.hidden_size=128", "--set", "train.steps=2"};
  const Steps expected = steps(1, on_cpu(words)), found = steps(1, on_gpu(words));
  unsetenv("OMP_NUM_THREADS");
  EXPECT_TRUE(has(found.log, "2 threads")) << found.log;
  expect_near(found.losses, expected.losses, 2e-6);
  expect_near(found.norms, expected.norms, 1e-5);
}

// The backward runs in a thread of autograd, the weight gradients that it leaves for later in the program's own.
TEST_F(TrainOnGpu, DeferredWeightGradientsGiveTheSameLossesToTheLastDigit) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  const auto with = [&](const std::string& schedule) {
    return steps(2, on_gpu({"--mesh", "pp=2", "--set", "parallel.pipeline.schedule=" + schedule, "--set",
                            "model.num_hidden_layers=2", "--set", "train.precision=bf16_mixed"}));
  };
  const Steps expected = with("1f1b"), found = with("zb_h1");
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
}

// One token in 50 ends a document: samples of 16 tokens have one or two.
TEST_F(TrainOnGpu, PackedDocumentsAsOnTheCpu) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  for (const auto& [precision, tolerance] : {std::pair{"fp32", 2e-6}, std::pair{"bf16_mixed", 1e-2}}) {
    const bool packed = std::string(precision) == "bf16_mixed";
    const Words words = {"--mesh", "cp=2",
                         "--set",  std::string("train.precision=") + precision,
                         "--set",  "data.documents=7",
                         "--set",  "train.micro_batch=2"};
    const Steps expected = steps(2, on_cpu(words)), found = steps(2, on_gpu(words));
    expect_near(found.losses, expected.losses, tolerance);
    expect_near(found.norms, expected.norms, 5 * tolerance);
    EXPECT_EQ(has(found.log, "attention by flash: documents of any lengths, causal"), packed) << found.log;
  }
}

// The same kernels on the same numbers; the learning rate differs in every step.
TEST_P(TrainOnGpuMesh, AGraphGivesTheSameLossesToTheLastDigit) {
  if (!is_in_sample()) GTEST_SKIP() << "every other mesh in a short run";
  Words words = on_gpu(arguments());
  words.insert(words.end(), {"--set", "train.steps=8", "--set", "schedule.warmup_steps=6"});
  const Steps expected = steps(GetParam().ranks, words);
  words.insert(words.end(), {"--set", "train.cuda_graph=true"});
  const Steps found = steps(GetParam().ranks, words);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  const bool recorded = GetParam().own_gpus || GetParam().ranks == 1;
  EXPECT_EQ(has(found.log, "steps are recorded as one graph"), recorded) << found.log;
}

TEST_F(TrainOnGpu, NoGraphWhereTheStateIsOffloaded) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  const Steps found = steps(
      1, on_gpu({"--set", "train.cuda_graph=true", "--set", "parallel.fsdp.offload={to: host, parameters: false}"}));
  EXPECT_TRUE(has(found.log, "no graph, because parallel.fsdp.offload copies the optimizer's state")) << found.log;
}

// Steps whose samples have documents are not made by the graph, and in some steps one rank alone has such samples.
TEST_F(TrainOnGpu, AGraphBesideDocumentsOfOneRank) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  Words words = on_gpu({"--mesh", "dp=2", "--set", "data.documents=7", "--set", "train.micro_batch=1"});
  for (const char* setting : {"train.steps=16", "parallel.timeout=30"}) words.insert(words.end(), {"--set", setting});
  const Steps expected = steps(2, words);
  words.insert(words.end(), {"--set", "train.cuda_graph=true"});
  const Steps found = steps(2, words);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
}

// An evaluation gathers parameters just before the fourth step, which is the recorded one.
TEST_F(TrainOnGpu, AGraphAfterAnEvaluationHoldsItsGathers) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  Words words = on_gpu({"--mesh", "dp=2", "--set", "evaluate.tokens=" + path("tokens.bin").string()});
  for (const char* setting :
       {"parallel.fsdp.mode=shard_grad_op", "train.steps=7", "evaluate.every=3", "evaluate.samples=4"}) {
    words.insert(words.end(), {"--set", setting});
  }
  const Steps expected = steps(2, words);
  words.insert(words.end(), {"--set", "train.cuda_graph=true"});
  const Steps found = steps(2, words);
  EXPECT_TRUE(has(found.log, "steps are recorded as one graph")) << found.log;
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
}

TEST_F(TrainOnGpu, ResumesWhatTheCpuBeganAndTheOtherWayRound) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  const Words full = {"--mesh", "dp=2", "--set", "checkpoint.every=2"};
  const Steps expected = steps(2, on_cpu(full));
  for (const bool gpu_first : {true, false}) {
    std::filesystem::remove_all(run_dir);
    Words first = full, second = {"--mesh", "tp=2", "--set", "checkpoint.every=2", "--resume"};
    first.insert(first.end(), {"--set", "train.steps=2"});
    first = on(gpu_first ? "cuda" : "cpu", first);
    second = on(gpu_first ? "cpu" : "cuda", second);
    EXPECT_EQ(train(2, first).status, 0);
    const Ending ending = train(2, second);
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::vector<double> losses;
    for (const nlohmann::json& entry : metrics()) losses.push_back(entry.at("loss").get<double>());
    expect_near(losses, expected.losses, 2e-6);
  }
}

TEST_F(TrainOnGpu, AllocatorSettings) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  const Words cuda = on_gpu({"--set", "train.steps=1"});
  Words words = cuda;
  words.insert(words.end(), {"--set", "train.cuda_allocator=max_split_size_mb:64"});
  EXPECT_EQ(train(1, words).status, 0);
  words.back() = "train.cuda_allocator=max_split:64";
  const std::string message = complaint(1, words);
  EXPECT_TRUE(has(message, "train.cuda_allocator: LibTorch does not accept 'max_split:64': ")) << message;
}

}  // namespace
}  // namespace meshtrain::testing
