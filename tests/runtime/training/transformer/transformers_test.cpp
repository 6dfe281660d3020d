// One rank computes what transformers computes: tests/fixtures, written by tests/fixtures/generate.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/files.h"
#include "tests/support/small_model.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

std::filesystem::path fixtures() {
  return testing::source_folder() + "/tests/fixtures";
}

class Transformers : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  Transformers()
      : folder_(fixtures() / std::get<0>(GetParam())),
        precision_(std::get<1>(GetParam())),
        reference_(folder_ / "reference.safetensors"),
        mesh_(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group()) {}

  at::Tensor reference(const std::string& name) const { return reference_.read(name); }
  double expected(const std::string& name) const { return reference(precision_ + "." + name).item().toDouble(); }
  double tolerance() const { return precision_ == "fp64" ? 1e-10 : 1e-5; }
  /// Returns the bound for a gradient: in fp32 also three times what transformers' own rounding does to it, since sums
  /// in another order differ by the rounding of both.
  double tolerance(const std::string& parameter) const {
    if (precision_ == "fp64") return tolerance();
    const at::Tensor exact = reference("fp64.gradient." + parameter);
    return std::max(tolerance(), 3 * testing::relative_error(reference("fp32.gradient." + parameter), exact));
  }

  TrainingOptions options(double clip_norm) const {
    TrainingOptions options;
    options.shape = read_config_json(folder_ / "config.json");
    options.weights = folder_;
    options.frozen_row = options.shape.pad_token_id;
    if (const double coefficient = options.shape.experts.router_aux_loss_coef; coefficient > 0) {
      options.balancing = {BalanceScope::AllLayers, coefficient};
    }
    const at::Tensor inputs = reference("inputs");
    options.batch = {inputs.size(1), inputs.size(0), inputs.size(0)};
    options.precision = testing::precision_in(precision_ == "fp64" ? at::kDouble : at::kFloat);
    options.clip_norm = clip_norm;
    options.optimizer.learning_rate = 1e-3;
    options.optimizer.weight_decay = 0.1;
    return options;
  }

  StepBatch batch() const {
    const at::Tensor labels = reference("labels").reshape(-1);
    return {{{reference("inputs").reshape(-1), labels}}, labels.ne(kIgnoredLabel).sum().item<int64_t>()};
  }

  void expect_close(double value, double wanted, const std::string& what) const {
    EXPECT_LE(std::abs(value - wanted), tolerance() * std::abs(wanted)) << what << " " << value << " not " << wanted;
  }

  std::filesystem::path folder_;
  std::string precision_;
  SafetensorsFile reference_;
  DeviceMesh mesh_;
};

TEST_P(Transformers, LossGradientsAndNorm) {
  TransformerTrainer trainer(options(/*clip_norm=*/0), mesh_, at::kCPU);
  const StepBatch batch = this->batch();
  const StepOutcome outcome = trainer.step(batch, batch.num_counted, {1e-3});
  expect_close(outcome.loss.item<double>(), expected("loss"), "loss");
  expect_close(outcome.grad_norm.item<double>(), expected("grad_norm"), "gradient norm");
  if (trainer.options().balancing.coefficient > 0) {
    expect_close(outcome.part_sums[0].item<double>(), expected("aux_loss"), "balancing loss");
  }
  for (const Parameter* parameter : trainer.model().parameters()) {
    if (!parameter->tensor.requires_grad()) continue;
    const at::Tensor wanted = reference(precision_ + ".gradient." + parameter->name).to(at::kDouble);
    EXPECT_LE(testing::relative_error(parameter->tensor.grad(), wanted), tolerance(parameter->name)) << parameter->name;
  }
}

TEST_P(Transformers, WeightsAfterThreeSteps) {
  if (precision_ != "fp64") return;  // AdamW's first steps are a sign: compared only when the sign is certain
  TransformerTrainer trainer(options(/*clip_norm=*/1), mesh_, at::kCPU);
  std::map<std::string, at::Tensor> before;
  for (const Parameter* parameter : trainer.model().parameters()) {
    before[parameter->name] = parameter->tensor.detach().clone();
  }
  const StepBatch batch = this->batch();
  const at::Tensor losses = reference("fp64.losses"), norms = reference("fp64.grad_norms");
  for (int step = 0; step < 3; ++step) {
    const StepOutcome outcome = trainer.step(batch, batch.num_counted, {1e-3});
    expect_close(outcome.loss.item<double>(), losses[step].item<double>(), "loss");
    expect_close(outcome.grad_norm.item<double>(), norms[step].item<double>(), "gradient norm");
  }
  for (const Parameter* parameter : trainer.model().parameters()) {
    if (!parameter->tensor.requires_grad()) {
      EXPECT_TRUE(at::equal(parameter->tensor, before[parameter->name])) << parameter->name;
      continue;
    }
    const at::Tensor movement = reference("fp64.weight." + parameter->name) - before[parameter->name];
    const at::Tensor difference = parameter->tensor.detach() - before[parameter->name] - movement;
    EXPECT_LE(difference.norm().item<double>(), 1e-10 * movement.norm().item<double>()) << parameter->name;
  }
}

// Without model.freeze_padding_row the padding row is trained as any other.
TEST_P(Transformers, ThePaddingRowIsFrozenOnRequest) {
  TrainingOptions options = this->options(/*clip_norm=*/0);
  if (!options.frozen_row || precision_ != "fp64") return;
  const StepBatch batch = this->batch();
  const auto row = [&] {
    TransformerTrainer trainer(options, mesh_, at::kCPU);
    trainer.step(batch, batch.num_counted, {1e-3});
    return trainer.model().parameters().front()->tensor.grad()[*options.shape.pad_token_id].clone();
  };
  const at::Tensor frozen = row();
  options.frozen_row.reset();
  const at::Tensor trained = row();
  EXPECT_GT((trained - frozen).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(frozen.any().item<bool>(), options.shape.tie_word_embeddings) << "a tied head is not affected";
}

// Gradients with a norm below the bound do not change: clipping never makes them longer.
TEST_P(Transformers, ShortGradientsAreNotClipped) {
  if (precision_ != "fp64") return;
  const StepBatch batch = this->batch();
  const auto weights_with = [&](double clip_norm) {
    TrainingOptions options = this->options(clip_norm);
    options.optimizer.name = "sgd";  // AdamW's step does not depend on the gradient's norm
    TransformerTrainer trainer(options, mesh_, at::kCPU);
    trainer.step(batch, batch.num_counted, {1e-3});
    std::vector<at::Tensor> weights;
    for (const Parameter* parameter : trainer.model().parameters())
      weights.push_back(parameter->tensor.detach().clone());
    return weights;
  };
  const std::vector<at::Tensor> unclipped = weights_with(0), clipped = weights_with(2 * expected("grad_norm"));
  for (size_t i = 0; i < unclipped.size(); ++i) EXPECT_TRUE(at::equal(clipped[i], unclipped[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    All, Transformers,
    ::testing::Combine(::testing::Values("llama", "llama_gqa_tied", "llama3_rope", "llama_linear", "llama_yarn",
                                         "llama_bias", "mistral", "qwen2", "qwen3", "smollm3", "granite", "phi3",
                                         "olmo2", "olmo3", "mistral_window", "qwen2_window", "phi3_long", "gemma2",
                                         "gemma3", "llama_padding", "qwen3_padding", "mixtral", "qwen2_moe",
                                         "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "mixtral_balanced",
                                         "qwen3_moe_balanced", "dots1", "glm4_moe", "gpt_oss"),
                       ::testing::Values("fp64", "fp32")),
    [](const auto& test) { return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace meshtrain
