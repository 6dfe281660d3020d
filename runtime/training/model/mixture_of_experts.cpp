#include "runtime/training/model/mixture_of_experts.h"

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "runtime/training/model/families.h"
#include "runtime/training/model/grouped_linear.h"
#include "runtime/training/model/operators/glu.h"
#include "runtime/training/model/token_routing.h"
#include "tensor_parallel/linear_function.h"

namespace meshtrain {
namespace {

/// Returns x [T, M] times the transpose of a weight that every rank holds, for its own rows.
at::Tensor linear(const at::Tensor& x, const Parameter& weight) {
  return column_parallel_linear(x, {weight.tensor}, {}, TensorParallel{});
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
                                   const at::TensorOptions& options)
    : shape_(shape.experts), family_(family_of(shape).experts), activation_(family_of(shape).activation) {
  const int64_t E = shape_.num_experts, M = shape.hidden_size, F = expert_features(shape);
  const auto declare = [&](const std::string& of, std::vector<int64_t> extents, int64_t num_matrices) {
    Parameter parameter =
        full_parameter(name + of, std::move(extents), {Initializer::Kind::Normal, shape.initializer_range}, options);
    parameter.partial_over = parallelism.tensor.stream_partial_over();
    parameter.num_matrices = num_matrices;
    parameter.written_by_layer = true;
    return parameter;
  };
  router_ = declare(".gate.weight", {E, M}, 1);
  gate_up_ = declare(".experts.gate_up_proj", {E, 2 * F, M}, 2 * E);
  down_ = declare(".experts.down_proj", {E, M, F}, E);
  if (shape_.shared_expert_intermediate_size == 0) return;
  shared_.emplace(name + ".shared_expert", shape, shape_.shared_expert_intermediate_size, parallelism, options);
  if (family_.gates_shared) shared_gate_ = declare(".shared_expert_gate.weight", {1, M}, 1);
}

at::Tensor MixtureOfExperts::forward(const LayerInput& x, bool recompute, const at::Tensor& tokens) const {
  const auto [experts, weights] = choose(x.value);
  const TokenRouting routing = route_tokens(experts, shape_.num_experts);
  const at::Tensor gate_up = grouped_linear(dispatch_rows(x.value, routing), gate_up_.tensor, routing.counts);
  const LayerInput inner = recompute ? recomputed_glu(gate_up, activation_) : LayerInput(glu(gate_up, activation_));
  const at::Tensor y = combine_rows(grouped_linear(inner, down_.tensor, routing.counts), weights, routing);
  return shared_ ? y + compute_shared(x, recompute, tokens) : y;
}

MixtureOfExperts::Choice MixtureOfExperts::choose(const at::Tensor& x) const {
  const at::ScalarType dtype = x.scalar_type();
  const at::Tensor logits = linear(x, router_).to(accumulation_dtype(dtype));
  const at::Tensor scores = family_.softmax_after_choice ? logits : logits.softmax(-1);
  auto [weights, experts] = scores.topk(shape_.num_experts_per_tok, -1);
  if (family_.softmax_after_choice) {
    weights = weights.softmax(-1);
  } else if (shape_.norm_topk_prob) {
    weights = weights / weights.sum(-1, /*keepdim=*/true);
  }
  return {experts, family_.wide_weights ? weights : weights.to(dtype)};
}

at::Tensor MixtureOfExperts::compute_shared(const LayerInput& x, bool recompute, const at::Tensor& tokens) const {
  const at::Tensor y = shared_->forward(x, recompute, tokens);
  return shared_gate_ ? linear(x.value, *shared_gate_).sigmoid() * y : y;
}

std::vector<Parameter*> MixtureOfExperts::parameters() {
  std::vector<Parameter*> all = {&router_, &gate_up_, &down_};
  if (shared_) {
    for (Parameter* parameter : shared_->parameters()) all.push_back(parameter);
  }
  if (shared_gate_) all.push_back(&*shared_gate_);
  return all;
}

}  // namespace meshtrain
