#include "runtime/program/published/recipe.h"

#include "runtime/program/recipe/load.h"

namespace meshtrain {
namespace {

/// Returns a documented recipe with the choices of the program that ran where the recipe leaves them open.
Recipe as_published(Recipe recipe, const Software& software) {
  recipe.device = "cuda";
  recipe.train.steps = 1;
  recipe.schedule = {};
  ParallelRecipe& parallel = recipe.parallel;
  const bool is_mixed = recipe.train.precision.ends_with("_mixed");
  if (is_mixed && parallel.fsdp.reduce_dtype == "auto") parallel.fsdp.reduce_dtype = software.reduce_dtype;
  if (parallel.context.algorithm == "auto") parallel.context.algorithm = software.context;
  if (parallel.sequence_parallel == "auto") parallel.sequence_parallel = software.sequence_parallel;
  return recipe;
}

}  // namespace

Recipe recipe_of(const PublishedRun& run, int64_t micro_batch, int64_t micro_batches, const Software& software) {
  if (run.recipe) return as_published(*run.recipe, software);
  Recipe recipe;
  recipe.name = run.id;
  recipe.device = "cuda";
  recipe.model.shape = run.shape;
  recipe.data.tokens = "tokens.bin";  // is not read
  recipe.data.dtype = "uint32";
  recipe.parallel.mesh = {{kDataAxis, run.dp}, {kContextAxis, run.cp}, {kTensorAxis, run.tp}};
  recipe.parallel.fsdp.mode = run.sharding;
  recipe.parallel.fsdp.shard_size = run.shard_size;
  recipe.parallel.fsdp.reduce_dtype = software.reduce_dtype;
  if (run.cp > 1) recipe.parallel.context.algorithm = software.context;
  if (run.tp > 1) recipe.parallel.sequence_parallel = software.sequence_parallel;
  // Sums of gradients of a step's micro-batches stay on the rank until the last, as in Megatron.
  recipe.parallel.fsdp.options.accumulate_unsharded = run.sharding == "shard_optimizer" || run.sharding == "no_shard";
  recipe.train.sequence_length = run.sequence;
  recipe.train.micro_batch = micro_batch;
  recipe.train.global_batch = micro_batch * micro_batches * run.dp;
  recipe.train.steps = 1;
  recipe.train.precision = run.precision == "fp8" ? "bf16_mixed" : run.precision;
  recipe.train.activation_checkpointing.mode = run.checkpointing;
  recipe.optimizer.learning_rate = 1e-4;
  return recipe;
}

MeshLayout layout_of(const PublishedRun& run, const Recipe& recipe) {
  return MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, run.gpus);
}

}  // namespace meshtrain
