#include "runtime/training/model/mixture_of_experts.h"

#include <ATen/ops/sigmoid.h>

#include "mesh/device/aten.h"
#include "runtime/training/model/families.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/operators/glu.h"
#include "tensor_parallel/linear_function.h"
#include "tensor_parallel/row_share.h"

namespace meshtrain {
namespace {

/// Returns x [T, M] times the transpose of a weight that every rank holds, for its own rows, plus a bias or none.
at::Tensor linear(const at::Tensor& x, const Parameter& weight, const std::vector<Parameter>& bias = {}) {
  std::vector<at::Tensor> biases;
  for (const Parameter& parameter : bias) biases.push_back(parameter.tensor);
  return column_parallel_linear(x, {weight.tensor}, biases, TensorParallel{});
}

Router router_of(const ModelShape& shape) {
  const FamilyExperts& family = family_of(shape).experts;
  return {.score = family.score,
          .num_experts = shape.experts.num_experts,
          .top_k = shape.experts.num_experts_per_tok,
          .normalises = shape.experts.norm_topk_prob,
          .weight_scale = shape.experts.routed_scaling_factor,
          .rounds_weights = !family.wide_weights,
          .num_groups = shape.experts.n_group,
          .chosen_groups = shape.experts.topk_group};
}

GatedActivation activation_of(const ModelShape& shape) {
  const ExpertsShape& experts = shape.experts;
  if (family_of(shape).experts.clamps) {
    return clamped_activation(experts.swiglu_alpha, experts.swiglu_limit, GateLayout::Interleaved);
  }
  return glu_of_experts(family_of(shape).activation);
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(int64_t layer, const std::string& name, const ModelShape& shape,
                                   const Parallelism& parallelism, const at::TensorOptions& options)
    : layer_(layer),
      rule_(router_of(shape)),
      activation_(activation_of(shape)),
      ep_(parallelism.experts),
      rows_over_(ep_.size() > 1 && !parallelism.tensor.splits_rows() ? parallelism.tensor.group : Group()) {
  const int64_t E = rule_.num_experts, M = shape.hidden_size, F = expert_features(shape);
  const Initializer initializer = {Initializer::Kind::Normal, shape.initializer_range};
  const bool sees_own_rows = parallelism.tensor.splits_rows() || rows_over_.size() > 1;
  const auto declare = [&](const std::string& of, std::vector<int64_t> extents, bool own_rows) {
    Parameter parameter = full_parameter(name + of, std::move(extents), initializer, options);
    parameter.partial_over = own_rows ? parallelism.tensor.group.name() : parallelism.tensor.stream_partial_over();
    parameter.written_by_layer = true;
    return parameter;
  };
  const auto declare_stack = [&](const std::string& of, std::vector<int64_t> extents) {
    Parameter parameter = ep_.size() > 1
                              ? sharded_parameter(name + of, std::move(extents), 0, ep_, initializer, options)
                              : declare(of, std::move(extents), /*own_rows=*/false);
    parameter.written_by_layer = true;
    return parameter;
  };
  const FamilyExperts& family = family_of(shape).experts;
  router_ = declare(".gate.weight", {E, M}, sees_own_rows);
  gate_up_ = declare_stack(".experts.gate_up_proj", {E, 2 * F, M});
  gate_up_.num_matrices = (family.clamps ? 1 : 2) * gate_up_.shape[0];
  down_ = declare_stack(".experts.down_proj", {E, M, F});
  down_.num_matrices = down_.shape[0];
  if (family.has_biases) {
    router_bias_.push_back(declare(".gate.bias", {E}, sees_own_rows));
    expert_biases_.push_back(declare_stack(".experts.gate_up_proj_bias", {E, 2 * F}));
    expert_biases_.push_back(declare_stack(".experts.down_proj_bias", {E, M}));
    for (Parameter& bias : expert_biases_) bias.initializer = {}, bias.num_matrices = 0;
  }
  const auto dtype = options.dtype().toScalarType();
  router_.written_by_layer = !(family.wide_logits && c10::isReducedFloatingType(dtype));
  if (family.has_selection_bias) {
    selection_bias_ =
        full_parameter(name + kSelectionBias, {E}, {}, options.dtype(dtype == at::kDouble ? at::kDouble : at::kFloat));
    selection_bias_->tensor.set_requires_grad(false);
  }
  const int64_t shared_features = shape.experts.shared_expert_intermediate_size;
  if (shared_features == 0) return;
  shared_.emplace(name + "." + family.shared_name, shape, shared_features, parallelism, options);
  if (family.gates_shared) shared_gate_ = declare(".shared_expert_gate.weight", {1, M}, /*own_rows=*/false);
}

at::Tensor MixtureOfExperts::forward(const LayerInput& x, bool recompute, const Sequence& sequence) const {
  const at::Tensor rows = own_rows(x.value, rows_over_);
  const Routing routing = choose(rows, sequence.routers);
  if (ep_.size() == 1) {
    const at::Tensor y =
        mixture(rows, routing.weights, sort_by_expert(routing.computed(rule_.num_experts), rule_.num_experts),
                expert_weights(), activation_, recompute);
    return shared_ ? y + compute_shared(x, recompute, sequence.tokens) : y;
  }
  const PendingDispatch dispatch(routing.computed(rule_.num_experts), rule_.num_experts, ep_);
  const at::Tensor shared = shared_ ? compute_shared(x, recompute, sequence.tokens) : at::Tensor();
  const at::Tensor y = mixture_over_ranks(rows, routing.weights, dispatch.wait(), expert_weights(), activation_,
                                          recompute, with_experts_);
  const at::Tensor all = all_rows(y, x.value.size(0), rows_over_);
  return shared_ ? all + shared : all;
}

at::Tensor MixtureOfExperts::logits_of(const at::Tensor& x) const {
  if (router_.written_by_layer) return linear(x, router_, router_bias_);
  return at::linear(x.to(at::kFloat), router_.tensor.to(at::kFloat));
}

Routing MixtureOfExperts::choose(const at::Tensor& x, const std::shared_ptr<RouterPass>& pass) const {
  const at::Tensor logits = logits_of(x), bias = selection_bias_ ? selection_bias_->tensor : at::Tensor();
  return pass ? pass->route_tokens(layer_, rule_, logits, bias) : route(rule_, logits, bias);
}

ExpertWeights MixtureOfExperts::expert_weights() const {
  ExpertWeights experts = {gate_up_.tensor, down_.tensor, {}, {}};
  if (!expert_biases_.empty()) {
    experts.gate_up_bias = expert_biases_[0].tensor;
    experts.down_bias = expert_biases_[1].tensor;
  }
  return experts;
}

at::Tensor MixtureOfExperts::compute_shared(const LayerInput& x, bool recompute, const at::Tensor& tokens) const {
  const at::Tensor y = shared_->forward(x, recompute, tokens);
  return shared_gate_ ? linear(x.value, *shared_gate_).sigmoid() * y : y;
}

std::vector<Parameter*> MixtureOfExperts::parameters() {
  std::vector<Parameter*> all = {&router_};
  for (Parameter& bias : router_bias_) all.push_back(&bias);
  if (selection_bias_) all.push_back(&*selection_bias_);
  if (shared_) {
    for (Parameter* parameter : shared_->parameters()) all.push_back(parameter);
  }
  if (shared_gate_) all.push_back(&*shared_gate_);
  if (ep_.size() == 1) {
    for (Parameter* parameter : experts()) all.push_back(parameter);
  }
  return all;
}

std::vector<Parameter*> MixtureOfExperts::experts() {
  std::vector<Parameter*> all = {&gate_up_, &down_};
  for (Parameter& bias : expert_biases_) all.push_back(&bias);
  return all;
}

std::vector<Parameter*> MixtureOfExperts::cut_experts() {
  return ep_.size() == 1 ? std::vector<Parameter*>() : experts();
}

}  // namespace meshtrain
