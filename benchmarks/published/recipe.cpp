#include "benchmarks/published/recipe.h"

#include "benchmarks/published/known_shapes.h"
#include "runtime/program/recipe/load.h"

namespace meshtrain {

Recipe recipe_of(const PublishedRun& run, int64_t micro_batch, int64_t micro_batches, const Software& software) {
  Recipe recipe;
  recipe.name = run.id;
  recipe.device = "cuda";
  recipe.model.shape = *known_shape(run.model);
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
