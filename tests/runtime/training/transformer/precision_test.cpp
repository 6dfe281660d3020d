// Numbers that stay in fp32 beside layers in a half: the residual stream, sums of gradients.

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/small_model.h"

namespace meshtrain {
namespace {

using testing::precision_in;
using testing::small_model;

TrainingOptions options_of(const std::string& family, int64_t num_layers) {
  TrainingOptions options = small_model();
  options.shape.family = family;
  options.shape.hidden_size = 64;
  options.shape.intermediate_size = 96;
  options.shape.num_hidden_layers = num_layers;
  options.shape.head_dim = 16;
  options.shape.initializer_range = 0.02;
  options.batch.sequence_length = 64;
  return options;
}

/// Returns a step of tokens that follow no pattern which a step could learn.
StepBatch batch_of(const TransformerTrainer& trainer) {
  const BatchOptions& sizes = trainer.options().batch;
  const StepBatch batch =
      made_step(trainer.options(), trainer.layout(), sizes.global_batch / sizes.micro_batch, at::kCPU);
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    const MicroBatch& tokens = batch.micro_batches[i];
    const at::Tensor indices = at::arange(tokens.inputs.numel(), at::kLong) + static_cast<int64_t>(1000 * i);
    tokens.inputs.copy_(((indices * 7919 + indices * indices * 31) % 61).view_as(tokens.inputs));
    tokens.labels.copy_((tokens.inputs * 17 + 5) % 61);
  }
  return batch;
}

/// Returns the gradients of all parameters, one after the other, in fp64.
at::Tensor gradients_of(TrainingOptions options, const Precision& precision) {
  options.precision = precision;
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
  TransformerTrainer trainer(options, mesh, at::kCPU);
  const StepBatch batch = batch_of(trainer);
  trainer.compute_gradients(batch, trainer.count_tokens(batch), {});
  std::vector<at::Tensor> all;
  trainer.fsdp().visit_gradients(
      [&](const Parameter& parameter) { all.push_back(parameter.valid().to(at::kDouble).flatten()); });
  return at::cat(all);
}

double distance(const at::Tensor& gradients, const at::Tensor& exact) {
  return ((gradients - exact).norm() / exact.norm()).item<double>();
}

// The residual stream is rounded to a half after the addition of each layer, unless it is fp32.
TEST(ResidualDtype, BringsGradientsNearerToThoseOfFp32) {
  for (const char* family : {"llama", "olmo2", "gemma2"}) {
    const TrainingOptions options = options_of(family, 24);
    const at::Tensor exact = gradients_of(options, {});
    for (const bool mixed : {true, false}) {
      Precision precision = precision_in(at::kBFloat16, mixed);
      const double narrow = distance(gradients_of(options, precision), exact);
      precision.residual = at::kFloat;
      EXPECT_LT(distance(gradients_of(options, precision), exact), 0.9 * narrow) << family << " " << mixed;
    }
  }
}

// Under bf16 each micro-batch is added to a sum that is rounded, unless reductions are in fp32.
TEST(ReduceDtype, BringsGradientsNearerToThoseOfFp32) {
  TrainingOptions options = options_of("llama", 2);
  options.batch.global_batch = 64;
  const at::Tensor exact = gradients_of(options, {});
  Precision precision = precision_in(at::kBFloat16);
  const double narrow = distance(gradients_of(options, precision), exact);
  precision.reduce = at::kFloat;
  EXPECT_LT(distance(gradients_of(options, precision), exact), 0.8 * narrow);
}

}  // namespace
}  // namespace meshtrain
