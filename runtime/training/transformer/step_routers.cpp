#include "runtime/training/transformer/step_routers.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "expert_parallel/balance.h"
#include "mesh/device/aten.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/transformer/sequences.h"

namespace meshtrain {
namespace {

constexpr size_t kInFront = 3;  // of the counts: balancing loss, z-loss, dropped pairs

/// Returns the indices of the layers with experts.
std::vector<int64_t> layers_with_experts(const ModelShape& shape) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    if (has_experts(shape, layer)) layers.push_back(layer);
  }
  return layers;
}

}  // namespace

ExpertMetrics expert_metrics(const TransformerOptions& options, const std::vector<double>& sums) {
  const auto num_experts = static_cast<size_t>(options.shape.experts.num_experts);
  const double num_layers = static_cast<double>((sums.size() - kInFront) / num_experts);
  const BalancingOptions& balancing = options.balancing;
  ExpertMetrics metrics;
  if (balancing.scope != BalanceScope::None) {
    metrics.balance_loss = sums[0] / (balancing.scope == BalanceScope::AllLayers ? 1 : num_layers);
  }
  if (balancing.z_loss > 0) metrics.z_loss = sums[1] / num_layers;
  if (balancing.capacity_factor) metrics.dropped = static_cast<int64_t>(sums[2]);
  for (size_t first = kInFront; first < sums.size(); first += num_experts) {
    const std::span<const double> counts(sums.data() + first, num_experts);
    const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
    const double load = all > 0 ? std::ranges::max(counts) * static_cast<double>(num_experts) / all : 0;
    metrics.load_max = std::max(metrics.load_max, load);
    metrics.load_mean += load / num_layers;
    metrics.unused += std::ranges::count(counts, 0.0);
  }
  return metrics;
}

StepRouters::StepRouters(const TransformerOptions& options, const DeviceMesh& mesh, at::Device device)
    : shape_(options.shape),
      options_(options.balancing),
      layout_(sequence_layout(options.context.layout, options.batch.sequence_length, mesh)),
      data_ranks_(mesh.size(kDataAxis)),
      device_(device) {
  const bool cuts_rows = options.sequence_parallel || mesh.layout().ep() > 1;
  sharers_ = cuts_rows ? mesh.group({kContextAxis, kTensorAxis}) : mesh.group(kContextAxis);
  speaks_ = cuts_rows || mesh.coordinate(kTensorAxis) == 0;
  if (!cuts_rows) return;
  row_parts_ = mesh.size(kTensorAxis);
  row_part_ = mesh.coordinate(kTensorAxis);
}

void StepRouters::begin_step(const at::Tensor& scale, int64_t num_micro_batches) {
  scale_ = scale;
  num_micro_batches_ = num_micro_batches;
  passes_.clear();
}

RouterTokens StepRouters::tokens_of(int64_t first_sample, int64_t sequences) const {
  const int64_t length = layout_.sequence_length(), rows = sequences * layout_.local_length();
  const int64_t share = (rows + row_parts_ - 1) / row_parts_, first = std::min(share * row_part_, rows);
  const at::Tensor all = at::arange(sequences * length, at::kLong).view({sequences, length});
  const at::Tensor own = layout_.take(all, 1).reshape(-1).narrow(0, first, std::min(share, rows - first)).to(device_);
  return {sequences, length, own.div(length, "floor"), sharers_, own + first_sample * length};
}

std::shared_ptr<RouterPass> StepRouters::begin_pass(const MicroBatch& micro_batch) {
  if (!scale_.defined()) return nullptr;
  const int64_t sequences = micro_batch.inputs.numel() / layout_.local_length();
  sequences_ = sequences * num_micro_batches_ * data_ranks_;
  passes_.push_back(std::make_shared<RouterPass>(options_, tokens_of(micro_batch.first_sample, sequences),
                                                 scale_ / static_cast<double>(sequences_), shape_.num_hidden_layers,
                                                 use_));
  return passes_.back();
}

void StepRouters::keep_choices(const RouterPass& pass) {
  if (use_.reference) changed_.add_(pass.changed());
  if (!use_.records) return;
  for (const int64_t layer : layers_with_experts(shape_)) {
    const at::Tensor choices = pass.choices(layer);
    if (!choices.defined()) continue;
    recorded_.push_back({static_cast<size_t>(layer), pass.tokens().numbers.cpu(), choices.cpu()});
  }
}

RunChoices StepRouters::recorded(int64_t num_tokens) const {
  RunChoices all(static_cast<size_t>(shape_.num_hidden_layers));
  for (const Choices& some : recorded_) {
    at::Tensor& of = all[some.layer];
    if (!of.defined()) of = at::full({num_tokens, some.choices.size(1)}, -1, at::kLong);
    of.index_copy_(0, some.numbers, some.choices);
  }
  return all;
}

void StepRouters::update_biases(Fsdp& fsdp, const at::Tensor& sums, const at::Tensor& non_finite) const {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> layers = layers_with_experts(shape_);
  const auto first = static_cast<int64_t>(kInFront), num_experts = shape_.experts.num_experts;
  const auto update_of = [&](const std::string& name) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (!name.starts_with("model.layers." + std::to_string(layers[i]) + ".")) continue;
      const at::Tensor counts = sums.narrow(0, first + static_cast<int64_t>(i) * num_experts, num_experts);
      return selection_bias_update(counts, options_.bias_update);
    }
    throw std::logic_error(name + " is the bias of a layer without experts");
  };
  for (const Unit& unit : fsdp.units()) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (buffer.trainable()) continue;
      for (const Segment& segment : buffer.segments()) {
        const Range range = buffer.in_shard({segment.offset, segment.numel});
        if (!segment.parameter->name.ends_with(kSelectionBias) || range.numel == 0) continue;
        const at::Tensor shard = buffer.shard_values();
        const int64_t begin = buffer.shard().offset + range.offset - segment.offset;
        const at::Tensor update = update_of(segment.parameter->name).narrow(0, begin, range.numel).to(shard.device());
        shard.narrow(0, range.offset, range.numel).add_(update * (1 - non_finite.to(shard.device())));
        set_aside(shard);
      }
    }
  }
  fsdp.shards_changed({.frozen = true});
}

at::Tensor StepRouters::end_step() {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> layers = layers_with_experts(shape_);
  const auto num_layers = static_cast<int64_t>(layers.size());
  at::Tensor in_front = at::zeros({static_cast<int64_t>(kInFront)}, scale_.options().dtype(at::kDouble));
  at::Tensor losses = in_front.narrow(0, 0, 2), dropped = in_front[2];
  at::Tensor counts = at::zeros({num_layers, shape_.experts.num_experts}, in_front.options());
  for (const auto& pass : passes_) {
    keep_choices(*pass);
    losses.add_(pass->losses(), 1 / static_cast<double>(sequences_));
    for (int64_t i = 0; i < num_layers; ++i) {
      const int64_t layer = layers[static_cast<size_t>(i)];
      const at::Tensor own = pass->counts(layer), without = pass->num_dropped(layer);
      if (own.defined()) counts[i].add_(own);
      if (without.defined()) dropped.add_(without);
    }
  }
  passes_.clear();
  scale_.reset();
  const at::Tensor all = at::cat({in_front, counts.flatten()});
  return speaks_ ? all : at::zeros_like(all);
}

}  // namespace meshtrain
