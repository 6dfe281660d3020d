// Numbers that stay in fp32 beside layers in a half: the residual stream, sums of gradients.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/trainer/trainer.h"

namespace meshtrain {
namespace {

Recipe recipe_of(const std::string& family, int64_t num_layers) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.family = family;
  shape.hidden_size = 64;
  shape.intermediate_size = 96;
  shape.num_hidden_layers = num_layers;
  shape.num_attention_heads = 4;
  shape.num_key_value_heads = 2;
  shape.head_dim = 16;
  shape.vocab_size = 64;
  shape.initializer_range = 0.02;
  recipe.train.sequence_length = 64;
  recipe.train.global_batch = 2;
  recipe.train.micro_batch = 2;
  return recipe;
}

/// Returns a step of tokens that follow no pattern which a step could learn.
StepBatch batch_of(const Recipe& recipe, const Trainer& trainer) {
  const int64_t count = recipe.train.global_batch / recipe.train.micro_batch;
  const StepBatch batch = made_step(recipe, trainer.layout(), count, at::kCPU);
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    const MicroBatch& tokens = batch.micro_batches[i];
    const at::Tensor places = at::arange(tokens.ids.numel(), at::kLong) + static_cast<int64_t>(1000 * i);
    tokens.ids.copy_(((places * 7919 + places * places * 31) % 61).view_as(tokens.ids));
    tokens.labels.copy_((tokens.ids * 17 + 5) % 61);
  }
  return batch;
}

/// Returns the gradients of all parameters, one behind the other, in fp64.
at::Tensor gradients_of(Recipe recipe, const std::string& precision) {
  recipe.train.precision = precision;
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
  Trainer trainer(recipe, mesh, at::kCPU);
  const StepBatch batch = batch_of(recipe, trainer);
  trainer.compute_gradients(batch, trainer.count_tokens(batch), {});
  std::vector<at::Tensor> all;
  trainer.fsdp().visit_gradients(
      [&](const Parameter& parameter) { all.push_back(parameter.valid().to(at::kDouble).flatten()); });
  return at::cat(all);
}

double distance(const at::Tensor& gradients, const at::Tensor& exact) {
  return ((gradients - exact).norm() / exact.norm()).item<double>();
}

// The sum of many layers' additions is rounded to the half behind each of them, unless it is fp32.
TEST(ResidualDtype, BringsGradientsNearerToThoseOfFp32) {
  for (const char* family : {"llama", "olmo2", "gemma2"}) {
    Recipe recipe = recipe_of(family, 24);
    const at::Tensor exact = gradients_of(recipe, "fp32");
    for (const char* precision : {"bf16_mixed", "bf16"}) {
      recipe.train.residual_dtype = "auto";
      const double narrow = distance(gradients_of(recipe, precision), exact);
      recipe.train.residual_dtype = "fp32";
      EXPECT_LT(distance(gradients_of(recipe, precision), exact), 0.9 * narrow) << family << " " << precision;
    }
  }
}

// Under bf16 each micro-batch is added to a sum that is rounded, unless reductions are in fp32.
TEST(ReduceDtype, BringsGradientsNearerToThoseOfFp32) {
  Recipe recipe = recipe_of("llama", 2);
  recipe.train.global_batch = 64;
  const at::Tensor exact = gradients_of(recipe, "fp32");
  const double narrow = distance(gradients_of(recipe, "bf16"), exact);
  recipe.parallel.fsdp.reduce_dtype = "fp32";
  EXPECT_LT(distance(gradients_of(recipe, "bf16"), exact), 0.8 * narrow);
}

}  // namespace
}  // namespace meshtrain
