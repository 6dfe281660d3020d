// `meshtrain verify`, and other uses of a model, on the emulated GPU.
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/program/forecast/machine.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

class VerifyOnGpu : public TrainProgram {
 protected:
  Ending verify(int ranks, int gpus, Words arguments) const {
    setenv("MESHTRAIN_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
    Words words = {"verify", recipe, "--device", "cuda", "--steps", "2"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_meshtrain_on_ranks(ranks, words);
  }

  void expect_equal(int ranks, int gpus, const Words& arguments) const {
    const Ending ending = verify(ranks, gpus, arguments);
    EXPECT_EQ(ending.status, 0) << ending.out << ending.err;
    EXPECT_TRUE(has(ending.out, "\nequal: loss, gradient norm, ")) << ending.out << ending.err;
    EXPECT_TRUE(has(ending.out, "\nattention by ")) << ending.out;
  }
};

TEST_F(VerifyOnGpu, MuonOverPackedDocuments) {
  expect_equal(
      4, 4,
      {"--mesh", "dp=2,tp=2", "--precision", "fp32", "--set", "optimizer.name=muon", "--set", "data.documents=0"});
}

TEST_F(VerifyOnGpu, HalvesOverARingWithActivationCheckpointing) {
  expect_equal(4, 4,
               {"--mesh", "dp=2,cp=2", "--precision", "fp16_mixed", "--set", "parallel.context.algorithm=ring", "--set",
                "train.activation_checkpointing.mode=full"});
}

TEST_F(VerifyOnGpu, Pipelines) {
  const std::string layers = "model.num_hidden_layers=5";
  expect_equal(4, 4, {"--mesh", "pp=2,tp=2", "--precision", "bf16_mixed", "--set", layers});
  expect_equal(
      4, 4,
      {"--mesh", "pp=2,dp=2", "--precision", "fp32", "--set", layers, "--set", "parallel.pipeline.stages_per_rank=2",
       "--set", "parallel.fsdp.mode=full_shard", "--set", "model.tie_word_embeddings=true"});
}

TEST_F(VerifyOnGpu, ExpertsOverRanks) {
  Words arguments = {"--mesh", "dp=2,tp=2,ep=4", "--precision", "fp32"};
  for (const char* setting :
       {"model.family=qwen2_moe", "model.num_experts=8", "model.num_experts_per_tok=2",
        "model.moe_intermediate_size=32", "model.shared_expert_intermediate_size=64", "train.experts.balance=sequence",
        "train.experts.coefficient=0.1", "train.activation_checkpointing.mode=full"}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  expect_equal(4, 4, arguments);
}

TEST_F(VerifyOnGpu, SinksAndBiasesOfExperts) {
  Words arguments = {"--mesh", "tp=2,cp=2,ep=4", "--precision", "fp32"};
  for (const char* setting :
       {"model.family=gpt_oss", "model.num_experts=4", "model.num_experts_per_tok=2", "model.sliding_window=5",
        "model.num_hidden_layers=2", "model.layer_types=[sliding_attention, full_attention]", "data.documents=0"}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  expect_equal(4, 4, arguments);
}

TEST_F(VerifyOnGpu, HybridShardsOnOneGpu) {
  expect_equal(2, 1,
               {"--mesh", "dp=2", "--precision", "bf16_mixed", "--set", "parallel.fsdp.mode=hybrid_shard", "--set",
                "parallel.fsdp.shard_size=1"});
}

TEST_F(VerifyOnGpu, SeesWhatIsMissing) {
  const Ending ending = verify(2, 2, {"--mesh", "dp=2", "--precision", "fp32", "--inject", "skip-reduce:dp"});
  EXPECT_EQ(ending.status, 1) << ending.out << ending.err;
  EXPECT_TRUE(has(ending.out, "\nDIFFERENT: ")) << ending.out;
}

// Norms of every parameter in every step, in float on the GPU.
TEST_F(VerifyOnGpu, ParameterMetricsAreThoseOfTheCpu) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  std::vector<nlohmann::json> expected;
  for (const std::string device : {"cpu", "cuda"}) {
    std::filesystem::remove_all(run_dir);
    const Ending ending =
        train(2, {"--mesh", "dp=2", "--set", "train.parameter_metrics.every=2", "--set", "device=" + device});
    ASSERT_EQ(ending.status, 0) << ending.err;
    const std::vector<nlohmann::json> found = lines(run_dir / "parameters.jsonl");
    ASSERT_EQ(found.size(), 2u);
    if (device == "cpu") expected = found;
    for (size_t i = 0; i < found.size(); ++i) {
      for (const auto& [name, norms] : expected[i].at("parameters").items()) {
        for (const auto& [key, value] : norms.items()) {
          const double norm = value.get<double>();
          EXPECT_NEAR(found[i].at("parameters").at(name).at(key).get<double>(), norm, 1e-4 * norm)
              << name << " " << key;
        }
      }
    }
  }
}

// The initial loss scale is too large: the first steps change nothing.
TEST_F(VerifyOnGpu, SkipsTheStepsThatTheCpuSkips) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  std::vector<nlohmann::json> expected;
  for (const std::string device : {"cpu", "cuda"}) {
    std::filesystem::remove_all(run_dir);
    const Ending ending =
        train(2, {"--mesh", "dp=2", "--set", "train.precision=fp16_mixed", "--set", "train.loss_scale.initial=4194304",
                  "--set", "train.steps=10", "--set", "device=" + device});
    ASSERT_EQ(ending.status, 0) << ending.err;
    const std::vector<nlohmann::json> found = metrics();
    expect_steps(found, 10);
    if (device == "cpu") expected = found;
    EXPECT_TRUE(found.front().at("grad_norm").is_null()) << found.front();
    EXPECT_FALSE(found.back().at("grad_norm").is_null()) << found.back();
    for (size_t i = 0; i < found.size(); ++i) {
      const double loss = expected[i].at("loss").get<double>();
      EXPECT_EQ(found[i].at("grad_norm").is_null(), expected[i].at("grad_norm").is_null()) << i;
      EXPECT_NEAR(found[i].at("loss").get<double>(), loss, 0.01 * loss) << i;
    }
  }
}

TEST_F(VerifyOnGpu, GeneratesAsOnTheCpu) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "device=cuda", "--set", "checkpoint.every=4"}).status, 0);
  std::vector<std::string> texts;
  for (const char* const device : {"cpu", "cuda"}) {
    const Ending ending = run_meshtrain_on_ranks(2, {"generate", run_dir, "--tokens", "1,2,3,4,5", "--max-tokens", "8",
                                                     "--json", "--mesh", "tp=2", "--device", device});
    EXPECT_EQ(ending.status, 0) << ending.err;
    texts.push_back(ending.out);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_TRUE(has(texts[0], "\"tokens\":[")) << texts[0];
}

TEST_F(VerifyOnGpu, GeneratesAndEvaluatesFromWeightsThatAreOffloaded) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "device=cuda", "--set", "checkpoint.every=4"}).status, 0);
  const std::string shards = path("shards").string();
  for (const int ranks : {1, 2}) {
    const auto outputs = [&](const Words& more) {
      std::string text;
      for (Words words :
           {Words{"generate", run_dir, "--tokens", "1,2,3,4,5", "--tokens", "7", "--max-tokens", "8", "--json"},
            Words{"evaluate", run_dir, "--tokens", path("tokens.bin")}}) {
        words.insert(words.end(), {"--device", "cuda", "--mesh", "dp=" + std::to_string(ranks)});
        words.insert(words.end(), more.begin(), more.end());
        const Ending ending = run_meshtrain_on_ranks(ranks, words);
        EXPECT_EQ(ending.status, 0) << ending.err;
        text += ending.out.substr(0, ending.out.rfind("; "));  // without the seconds of an evaluation
        if (words.front() == "generate" && !more.empty()) {
          EXPECT_TRUE(has(ending.err, " KiB in " + (more[1] == "host" ? "host memory" : shards) + ", loaded"))
              << ending.err;
        }
      }
      return text;
    };
    const std::string expected = outputs({});
    EXPECT_TRUE(has(expected, "\"tokens\":[")) << expected;
    EXPECT_EQ(outputs({"--offload", "host"}), expected) << ranks;
    EXPECT_EQ(outputs({"--offload", shards}), expected) << ranks;
  }
}

TEST_F(VerifyOnGpu, CalibratesTheHostOfAMachine) {
  setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
  const std::string file = path("machine.yaml").string();
  const Ending ending = run_meshtrain({"plan", recipe, "--calibrate", "--machine", "h100", "--out", file});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "wrote " + file + ": copies ")) << ending.out;
  const Machine machine = load_machine(file), preset = load_machine("h100");
  for (const double rate : {machine.host.to_gpu, machine.host.to_host, machine.host.update}) {
    EXPECT_GT(rate, 1e7);
    EXPECT_LT(rate, 1e12);
  }
  EXPECT_EQ(machine.host.update_all, 0);
  EXPECT_EQ(machine.memory_bandwidth, preset.memory_bandwidth) << "all else is the preset's";
}

}  // namespace
}  // namespace meshtrain::testing
