#include "runtime/program/generate/language_model.h"

#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/parallelize.h"

namespace meshtrain {
namespace {

/// Returns the options of a model whose weights are cut over the rows when there are several, and offloaded on one rank
/// too.
TransformerOptions transformer_options(const ModelShape& shape, int64_t num_rows,
                                       const LanguageModel::Options& options) {
  TransformerOptions all{.shape = shape,
                         .freeze = {"*"},
                         .precision = {.compute = options.dtype, .residual = options.dtype, .reduce = options.dtype}};
  all.offload = options.offload;
  all.offload_folder = options.offload_folder;
  if (num_rows > 1 || all.offload != Offload::None) {
    all.sharding = {.mode = ShardingMode::FullShard, .num_ranks = num_rows};
  }
  return all;
}

}  // namespace

void check_generating_mesh(const MeshLayout& layout) {
  if (layout.ep() > 1) {
    throw InputError(
        "mesh " + layout.describe() +
        ": ranks along dp generate texts of different lengths, so each must hold all experts: leave ep out");
  }
  for (const char* const axis : {kContextAxis, kPipelineAxis}) {
    if (layout.size(axis) == 1) continue;
    throw InputError("mesh " + layout.describe() +
                     ": generate has the axes dp (different prompts) and tp (one prompt together): leave " + axis +
                     " out and give its " + std::to_string(layout.size(axis)) +
                     " ranks to dp or tp, as in --mesh tp=" + std::to_string(layout.size()));
  }
}

LanguageModel::LanguageModel(const ModelShape& shape, const DeviceMesh& mesh, const Options& options,
                             const std::function<void(const Parameter&)>& read)
    : shape_(shape),
      rows_(mesh.group(kDataAxis)),
      num_parts_(mesh.size(kTensorAxis)),
      options_(at::TensorOptions(options.device).dtype(options.dtype)) {
  check_generating_mesh(mesh.layout());
  const TransformerOptions all = transformer_options(shape, rows_.size(), options);
  const ModelFsdp fsdp = fsdp_options(all, map_replicas(all.sharding, mesh));
  agree(mesh.world(), [&] { model_ = std::move(parallelize(all, fsdp, mesh, options.device, read).front()); });
}

KeyValueCache LanguageModel::make_cache(int64_t capacity) const {
  return KeyValueCache(shape_, num_parts_, capacity, options_);
}

VocabularyLogits LanguageModel::next(const std::vector<int64_t>& ids, KeyValueCache& cache) {
  const int64_t count = static_cast<int64_t>(ids.size());
  const at::Tensor positions = at::arange(cache.length(), cache.length() + count);
  const at::ScalarType dtype = options_.dtype().toScalarType();
  const Sequence sequence{SequenceLayout::unsharded(count),
                          make_rotary(shape_, positions, dtype, options_.device(), cache.capacity()),
                          make_local_rotary(shape_, positions, dtype, options_.device()), &cache};
  return model_->next_logits(at::tensor(ids, at::kLong).to(options_.device()), sequence);
}

}  // namespace meshtrain
