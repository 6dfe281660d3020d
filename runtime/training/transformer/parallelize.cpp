#include "runtime/training/transformer/parallelize.h"

#include <stdexcept>

#include "mesh/device/meta_device.h"

namespace meshtrain {

// The order matters. Layers are constructed with their part of each matrix, so tensor parallelism comes first. A
// recomputed block repeats its collectives, so it must know them before. Units contain what a rank holds after that,
// and are cut over the data-parallel ranks that hold the same parts. Values are written once storage exists.
std::vector<std::unique_ptr<ShardedModel>> parallelize(const TransformerOptions& options, const ModelFsdp& fsdp,
                                                       const DeviceMesh& mesh, at::Device device,
                                                       const WriteParameter& write, const std::vector<Range>& stages) {
  Parallelism parallelism;

  // 1. Tensor parallel: cuts matrices over tp, and under sequence parallel also the residual stream between them.
  parallelism.tensor = {mesh.group(kTensorAxis), options.sequence_parallel};

  // 2. Context parallel: attention over sequences that are cut over cp.
  parallelism.context = mesh.group(kContextAxis);
  parallelism.context_algorithm = options.context.algorithm;

  // 3. Expert parallel: cuts the experts of a layer over ep, which sees the ranks of dp, cp and tp as a mesh of its
  // own.
  parallelism.experts = fsdp.ep;

  // 4. Activation checkpointing: blocks that the backward recomputes. Parameters have no storage yet.
  const auto model = std::make_shared<Transformer>(options.shape, parallelism,
                                                   at::TensorOptions(device).dtype(options.precision.compute),
                                                   options.recomputation, options.precision.residual);
  if (options.frozen_row) model->freeze_embedding_row(*options.frozen_row);
  for (Parameter* parameter : model->parameters()) {
    if (!is_trained(options.shape.adapter, options.freeze, parameter->name)) parameter->tensor.set_requires_grad(false);
  }

  // 5. FSDP: units of layers in flat buffers, cut over the data-parallel ranks, or complete on each rank for NO_SHARD.
  std::vector<std::unique_ptr<ShardedModel>> parts;
  const Range all = {0, static_cast<int64_t>(model->layers().size())};
  if (stages.size() > 1 && options.shape.tie_word_embeddings && stages.front().offset == 0 &&
      stages.back().offset + stages.back().numel == all.numel) {
    throw std::invalid_argument("the head shares the embedding's weight: on one rank both must be in one part");
  }
  for (const Range& layers : stages.empty() ? std::vector<Range>{all} : stages) {
    parts.push_back(std::make_unique<ShardedModel>(model, layers, options.units, fsdp));
    if (options.offload_activations && is_gpu(device)) parts.back()->offload_activations(device);
  }

  // 6. Weights: each rank writes its own part, one unit at a time.
  for (const auto& part : parts) {
    part->fsdp().write_values(write);
    if (part->experts() != nullptr) part->experts()->write_values(write);
  }
  return parts;
}

}  // namespace meshtrain
