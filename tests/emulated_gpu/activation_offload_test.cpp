// Compares training with activations in host memory with training without, on the emulated GPU. Its copies run late and
// in parallel with its computation.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/full_run.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

struct ActivationCase {
  const char* mesh;
  int ranks;
  const char* mode;
  const char* precision;
  Words settings = {};
};

void PrintTo(const ActivationCase& at, std::ostream* out) {
  *out << at.mesh << ", " << at.mode << ", " << at.precision;
  for (const std::string& setting : at.settings) *out << " " << setting;
}

const std::string kOffload = "train.offload_activations=true";

class ActivationsOnGpu : public TrainProgram, public ::testing::WithParamInterface<ActivationCase> {
 protected:
  /// Runs six steps. Returns the losses and norms of all of them, in turn.
  std::vector<double> steps(const Words& more) {
    setenv("MESHTRAIN_EMULATED_GPUS", std::to_string(GetParam().ranks).c_str(), 1);
    std::filesystem::remove_all(run_dir);
    Words words = {"--mesh", GetParam().mesh, "--set", "device=cuda"};
    Words settings = {std::string("parallel.fsdp.mode=") + GetParam().mode,
                      std::string("train.precision=") + GetParam().precision, "train.steps=6",
                      "model.num_hidden_layers=4"};
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    settings.insert(settings.end(), more.begin(), more.end());
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    const Ending ending = train(GetParam().ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::vector<double> numbers;
    for (const nlohmann::json& entry : metrics()) {
      numbers.push_back(entry.at("loss").get<double>());
      numbers.push_back(entry.at("grad_norm").get<double>());
    }
    EXPECT_EQ(numbers.size(), 12U);
    return numbers;
  }
};

TEST_P(ActivationsOnGpu, HaveTheBitsOfThoseThatStay) {
  if (!is_in_sample()) GTEST_SKIP() << "every other mesh in a short run";
  const std::vector<double> expected = steps({});
  EXPECT_EQ(steps({kOffload}), expected);
}

const std::string kFull = "train.activation_checkpointing={mode: full}";
const std::string kSelective = "train.activation_checkpointing={mode: selective}";

INSTANTIATE_TEST_SUITE_P(
    Meshes, ActivationsOnGpu,
    ::testing::Values(ActivationCase{"dp=1", 1, "no_shard", "fp32"},
                      ActivationCase{"dp=2", 2, "full_shard", "bf16_mixed", {"parallel.fsdp.offload={to: host}"}},
                      ActivationCase{"dp=2", 2, "shard_grad_op", "fp32", {kSelective}},
                      ActivationCase{"dp=2", 2, "full_shard", "bf16", {kFull, "parallel.fsdp.unit=sublayer"}},
                      ActivationCase{"tp=2", 2, "no_shard", "bf16_mixed", {kSelective}},
                      ActivationCase{"cp=2", 2, "full_shard", "fp32", {"parallel.context.algorithm=all_gather"}},
                      ActivationCase{"cp=2", 2, "full_shard", "fp32", {"parallel.context.algorithm=ulysses"}},
                      ActivationCase{"dp=2,cp=2", 4, "full_shard", "bf16_mixed", {"parallel.context.algorithm=ring"}},
                      ActivationCase{"dp=4", 4, "hybrid_shard", "fp32", {"parallel.fsdp.shard_size=2"}}));

class OffloadedActivations : public TrainProgram {
 protected:
  /// Runs ten steps on a GPU. Returns the forecast of rank 0 and what was measured.
  nlohmann::json forecast(const Words& settings) {
    setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
    std::filesystem::remove_all(run_dir);
    Words words = {"--set", "device=cuda"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    for (const char* setting :
         {"train.steps=10", "model.hidden_size=128", "model.intermediate_size=512", "model.num_hidden_layers=8"}) {
      words.insert(words.end(), {"--set", setting});
    }
    const Ending ending = train(1, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return lines(run_dir / "forecast.json").at(0);
  }
};

// The plan counts neither the memory of libraries nor what LibTorch's allocator adds to a tensor's bytes: both are the
// same with and without offload.
TEST_F(OffloadedActivations, MemoryLeavesTheDeviceAsPlanned) {
  const nlohmann::json without = forecast({}), with = forecast({kOffload});
  const auto saved = [&](const char* which) {
    const auto bytes = [&](const nlohmann::json& of) { return of.at(which).at("memory_bytes").get<int64_t>(); };
    return bytes(without) - bytes(with);
  };
  EXPECT_EQ(saved("measured"), saved("planned"));
  EXPECT_GT(saved("measured"), 900'000);
  const nlohmann::json& offload = with.at("planned").at("offload");
  EXPECT_GT(offload.at("host_activations_bytes"), 0);
  EXPECT_GT(offload.at("copied_activations_bytes"), offload.at("host_activations_bytes"));
  EXPECT_EQ(offload.at("host_bytes"), 0);
}

}  // namespace
}  // namespace meshtrain::testing
