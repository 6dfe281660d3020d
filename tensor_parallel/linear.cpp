#include "tensor_parallel/linear.h"

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

int64_t divided(const TensorParallel& tp, const std::string& layer, const char* kind, int64_t features) {
  if (features % tp.group.size() != 0) {
    throw InputError(layer + " has " + std::to_string(features) + " " + kind + " features, which tp=" +
                     std::to_string(tp.group.size()) + " does not divide: choose a tp that does");
  }
  return features;
}

std::vector<at::Tensor> tensors(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> all;
  for (const Parameter& parameter : parameters) all.push_back(parameter.tensor);
  return all;
}

void append(std::vector<Parameter*>& all, std::vector<Parameter>& parameters) {
  for (Parameter& parameter : parameters) all.push_back(&parameter);
}

void append(std::vector<Parameter*>& all, std::vector<Adapter>& adapters) {
  for (Adapter& adapter : adapters) all.push_back(&adapter.a);
  for (Adapter& adapter : adapters) all.push_back(&adapter.b);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const TensorParallel& tp, int64_t in_features,
                                           const std::vector<Output>& outputs, bool bias, Initializer initializer,
                                           const at::TensorOptions& options)
    : tp_(tp) {
  int64_t first_column = 0;
  for (const auto& [name, features, adapter] : outputs) {
    const int64_t rows = divided(tp, name, "output", features);
    if (adapter) {
      adapters_.push_back(column_parallel_adapter(tp, name, in_features, features, *adapter, options));
      adapters_.back().a.follows_previous = adapters_.size() > 1;
      first_columns_.push_back(first_column);
    }
    first_column += features / tp.group.size();
    weights_.push_back(sharded_parameter(name + ".weight", {rows, in_features}, 0, tp.group, initializer, options));
    weights_.back().follows_previous = weights_.size() > 1;
    weights_.back().written_by_layer = true;
    if (!bias) continue;
    biases_.push_back(sharded_parameter(name + ".bias", {rows}, 0, tp.group, Initializer{}, options));
    biases_.back().follows_previous = biases_.size() > 1;
    biases_.back().written_by_layer = true;
  }
}

at::Tensor ColumnParallelLinear::forward(const LayerInput& x, const at::Tensor& tokens) const {
  return column_parallel_linear(x, tensors(weights_), tensors(biases_), tp_,
                                adapter_terms(adapters_, first_columns_, tokens));
}

std::vector<Parameter*> ColumnParallelLinear::parameters() {
  std::vector<Parameter*> all;
  append(all, weights_);
  append(all, biases_);
  append(all, adapters_);
  return all;
}

RowParallelLinear::RowParallelLinear(const TensorParallel& tp, const std::string& name, int64_t in_features,
                                     int64_t out_features, bool bias, Initializer initializer,
                                     const at::TensorOptions& options, const std::optional<AdapterOptions>& adapter)
    : tp_(tp),
      weight_(sharded_parameter(name + ".weight", {out_features, divided(tp, name, "input", in_features)}, 1, tp.group,
                                initializer, options)) {
  weight_.written_by_layer = true;
  if (adapter) adapter_.push_back(row_parallel_adapter(tp, name, in_features, out_features, *adapter, options));
  if (!bias) return;
  bias_.push_back(full_parameter(name + ".bias", {out_features}, Initializer{}, options));
  bias_.back().written_by_layer = true;
  if (tp.splits_rows()) bias_.back().partial_over = tp.group.name();
}

at::Tensor RowParallelLinear::forward(const LayerInput& x, const at::Tensor& tokens) const {
  return row_parallel_linear(x, weight_.tensor, bias_.empty() ? at::Tensor() : bias_.front().tensor, tp_,
                             adapter_terms(adapter_, {0}, tokens));
}

std::vector<Parameter*> RowParallelLinear::parameters() {
  std::vector<Parameter*> all = {&weight_};
  append(all, bias_);
  append(all, adapter_);
  return all;
}

}  // namespace meshtrain
