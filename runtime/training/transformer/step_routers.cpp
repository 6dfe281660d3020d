#include "runtime/training/transformer/step_routers.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

constexpr size_t kLosses = 2;  // in front of the counts

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
  const double num_layers = static_cast<double>((sums.size() - kLosses) / num_experts);
  const BalancingOptions& balancing = options.balancing;
  ExpertMetrics metrics;
  if (balancing.scope != BalanceScope::None) {
    metrics.balance_loss = sums[0] / (balancing.scope == BalanceScope::AllLayers ? 1 : num_layers);
  }
  if (balancing.z_loss > 0) metrics.z_loss = sums[1] / num_layers;
  for (size_t first = kLosses; first < sums.size(); first += num_experts) {
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
      sequence_length_(options.batch.sequence_length),
      length_(sequence_length_ / mesh.size(kContextAxis)),
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

RouterTokens StepRouters::tokens_of(int64_t sequences) const {
  const int64_t all = sequences * length_, share = (all + row_parts_ - 1) / row_parts_;
  const int64_t first = std::min(share * row_part_, all), rows = std::min(share, all - first);
  const at::Tensor numbers = at::arange(rows, at::TensorOptions(device_).dtype(at::kLong)) + first;
  return {sequences, sequence_length_, numbers.div(length_, "floor"), sharers_};
}

std::shared_ptr<RouterPass> StepRouters::begin_pass(int64_t num_tokens) {
  if (!scale_.defined()) return nullptr;
  const int64_t sequences = num_tokens / length_;
  sequences_ = sequences * num_micro_batches_ * data_ranks_;
  passes_.push_back(std::make_shared<RouterPass>(options_, tokens_of(sequences),
                                                 scale_ / static_cast<double>(sequences_), shape_.num_hidden_layers));
  return passes_.back();
}

at::Tensor StepRouters::end_step() {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> layers = layers_with_experts(shape_);
  const auto num_layers = static_cast<int64_t>(layers.size());
  at::Tensor losses = at::zeros({static_cast<int64_t>(kLosses)}, scale_.options().dtype(at::kDouble));
  at::Tensor counts = at::zeros({num_layers, shape_.experts.num_experts}, losses.options());
  for (const auto& pass : passes_) {
    losses.add_(pass->losses(), 1 / static_cast<double>(sequences_));
    for (int64_t i = 0; i < num_layers; ++i) {
      const at::Tensor own = pass->counts(layers[static_cast<size_t>(i)]);
      if (own.defined()) counts[i].add_(own);
    }
  }
  passes_.clear();
  scale_.reset();
  const at::Tensor all = at::cat({losses, counts.flatten()});
  return speaks_ ? all : at::zeros_like(all);
}

}  // namespace meshtrain
