#include "runtime/trainer/parallelize.h"

#include <utility>

#include "runtime/files/glob.h"

namespace meshtrain {

// The order matters. Layers are constructed with their part of each matrix, so tensor parallelism comes first. A
// recomputed block repeats its collectives, so it must know them before. Units contain what a rank holds after that,
// and are cut over the data-parallel ranks that hold the same parts. Values are written once storage exists.
//
// A pipeline axis would slice layers() between 3 and 4; experts are another feed-forward, within 1.
std::unique_ptr<ShardedModel> parallelize(const ModelPlan& plan, const DeviceMesh& mesh, const WriteParameter& write) {
  Parallelism parallelism;

  // 1. Tensor parallel: cuts matrices over tp, and under sequence parallel also the residual stream between them.
  parallelism.tensor = {mesh.group(kTensorAxis), plan.sequence_parallel};

  // 2. Context parallel: attention over sequences that are cut over cp.
  parallelism.context = mesh.group(kContextAxis);
  parallelism.context_algorithm = plan.context_algorithm;

  // 3. Activation checkpointing: blocks that the backward recomputes. Parameters have no storage yet.
  auto model =
      std::make_unique<Transformer>(plan.shape, parallelism, plan.options, plan.recomputation, plan.residual_dtype);
  if (plan.frozen_row) model->freeze_embedding_row(*plan.frozen_row);
  for (Parameter* parameter : model->parameters()) {
    if (first_match(plan.freeze, parameter->name)) parameter->tensor.set_requires_grad(false);
  }

  // 4. FSDP: units of layers in flat buffers, cut over the data-parallel ranks, or complete on each rank for NO_SHARD.
  auto sharded = std::make_unique<ShardedModel>(std::move(model), plan.unit_layers, plan.fsdp);

  // 5. Weights: each rank writes its own part, one unit at a time.
  sharded->fsdp().write_values(write);
  return sharded;
}

}  // namespace meshtrain
