#include "expert_parallel/router_pass.h"

#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <utility>

#include "expert_parallel/balance.h"
#include "expert_parallel/capacity.h"
#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PassHolder : torch::CustomClassHolder {
  explicit PassHolder(std::shared_ptr<const RouterPass> router_pass) : pass(std::move(router_pass)) {}
  std::shared_ptr<const RouterPass> pass;
};

/// Returns the slots' weights. The balancing loss is linear in the probabilities of all experts, and its gradient is
/// known when the counts of all layers and ranks are: in the backward.
struct BalancedWeights : torch::autograd::Function<BalancedWeights> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weights, const at::Tensor& probabilities,
                            int64_t layer, const c10::intrusive_ptr<PassHolder>& holder) {
    ctx->saved_data["pass"] = c10::IValue::make_capsule(holder);
    ctx->saved_data["layer"] = layer;
    ctx->saved_data["dtype"] = static_cast<int64_t>(probabilities.scalar_type());
    return weights;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<PassHolder>(ctx->saved_data["pass"].toCapsule());
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    return {grads[0], holder->pass->gradient(ctx->saved_data["layer"].toInt(), dtype), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RouterPass::RouterPass(const BalancingOptions& options, RouterTokens tokens, at::Tensor seed, int64_t num_layers,
                       ChoiceUse use)
    : options_(options),
      tokens_(std::move(tokens)),
      seed_(std::move(seed)),
      use_(std::move(use)),
      layers_(static_cast<size_t>(num_layers)) {}

at::Tensor RouterPass::reference_of(int64_t layer) const {
  const at::Tensor& all = use_.reference->at(static_cast<size_t>(layer));
  return rows_at(all, tokens_.numbers.to(all.device())).to(tokens_.numbers.device());
}

Routing RouterPass::route_tokens(int64_t layer, const Router& router, const at::Tensor& logits,
                                 const at::Tensor& selection_bias) {
  Layer& of = layers_.at(static_cast<size_t>(layer));
  const bool is_first = !of.own_counts.defined();  // false: it is recomputed
  const at::Tensor reference = use_.reference ? reference_of(layer) : at::Tensor();
  Routing routing = route(router, logits, selection_bias, use_.replays ? reference : at::Tensor());
  if (is_first && reference.defined()) {
    const at::Tensor own = use_.replays ? route(router, logits.detach(), selection_bias).choices : routing.choices;
    of.changed = std::get<0>(own.sort(1)).ne(std::get<0>(reference.sort(1))).any(1).sum();
  }
  if (is_first && use_.records) of.choices = routing.choices;
  if (is_first) of.dropped = dropped(router, routing.choices);
  routing.dropped = of.dropped;
  routing.weights = balanced_weights(of, layer, is_first, router, logits, routing);
  return routing;
}

at::Tensor RouterPass::dropped(const Router& router, const at::Tensor& choices) const {
  if (!options_.capacity_factor) return {};
  const int64_t num_tokens = tokens_.sequences * tokens_.length;
  const int64_t capacity = expert_capacity(*options_.capacity_factor, num_tokens, router.top_k, router.num_experts);
  const at::Tensor positions = tokens_.sequence_of * tokens_.length + tokens_.numbers.remainder(tokens_.length);
  return pairs_beyond(capacity, choices, positions, num_tokens, router.num_experts, tokens_.sharers);
}

at::Tensor RouterPass::num_dropped(int64_t layer) const {
  const at::Tensor& all = layers_.at(static_cast<size_t>(layer)).dropped;
  return all.defined() ? all.sum() : all;
}

at::Tensor RouterPass::balanced_weights(Layer& of, int64_t layer, bool is_first, const Router& router,
                                        const at::Tensor& logits, const Routing& routing) {
  const bool has_loss = options_.scope != BalanceScope::None;
  const at::Tensor row_of = rows() > 1 ? tokens_.sequence_of : at::zeros_like(tokens_.sequence_of);
  if (is_first) {
    of.top_k = router.top_k;
    of.own_counts = choice_counts(routing.choices, router.num_experts, row_of, rows());
  }
  at::Tensor weights = routing.weights;
  if (has_loss) {
    const at::Tensor probabilities = router_probabilities(router, logits);
    if (is_first) of.sums = sums_by_sequence(probabilities.detach(), row_of, rows());
    weights =
        BalancedWeights::apply(weights, probabilities, layer, c10::make_intrusive<PassHolder>(shared_from_this()));
  }
  if (options_.z_loss > 0) {
    const at::Tensor z = router_z_loss(logits);
    if (is_first) of.z = z.detach();
    weights = attach_loss(weights, z, options_.z_loss / static_cast<double>(tokens_.length), seed_);
  }
  return weights;
}

void RouterPass::end_forward() {
  if (options_.scope == BalanceScope::None) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const Layer& layer : layers_) {
    if (layer.own_counts.defined()) own.push_back(layer.own_counts);
  }
  if (own.empty()) return;
  sums_ = at::stack(own);
  int64_t next = 0;
  for (Layer& layer : layers_) {
    if (layer.own_counts.defined()) layer.counts = sums_[next++];
  }
  summed_ = tokens_.sharers.with_purpose("router_counts").all_reduce(sums_);
}

at::Tensor RouterPass::factors(const Layer& layer, at::ScalarType dtype) const {
  if (!layer.counts.defined())
    throw std::logic_error("a balancing loss has no counts: call RouterPass::end_forward() before the backward");
  summed_.wait();
  if (options_.scope == BalanceScope::Sequence) return balance_factors(layer.counts, layer.top_k, dtype);
  const bool joins = options_.scope == BalanceScope::AllLayers;
  const at::Tensor factors = balance_factors(joins ? sums_.sum(0) : layer.counts, layer.top_k, dtype);
  return factors * static_cast<double>(joins ? layer.top_k * tokens_.sequences : tokens_.sequences);
}

at::Tensor RouterPass::gradient(int64_t layer, at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  const at::Tensor of_rows =
      factors(layers_.at(static_cast<size_t>(layer)), dtype) * (seed_ * options_.coefficient).to(dtype);
  if (rows() > 1) return rows_at(of_rows, tokens_.sequence_of);
  return of_rows.expand({tokens_.sequence_of.numel(), of_rows.size(1)});
}

at::Tensor RouterPass::losses() const {
  const at::NoGradGuard no_grad;
  at::Tensor balance = at::zeros({}, seed_.options().dtype(at::kDouble)), z = at::zeros_like(balance);
  for (const Layer& layer : layers_) {
    if (layer.sums.defined()) balance.add_((factors(layer, layer.sums.scalar_type()) * layer.sums).sum());
    if (layer.z.defined()) z.add_(layer.z, 1 / static_cast<double>(tokens_.length));
  }
  return at::stack({balance, z});
}

at::Tensor RouterPass::changed() const {
  const at::NoGradGuard no_grad;
  at::Tensor numbers = at::zeros({2}, at::kLong);
  for (const Layer& layer : layers_) {
    if (!layer.changed.defined()) continue;
    numbers[0].add_(layer.changed.cpu());
    numbers[1].add_(tokens_.numbers.numel());
  }
  return numbers;
}

at::Tensor RouterPass::counts(int64_t layer) const {
  const at::Tensor& own = layers_.at(static_cast<size_t>(layer)).own_counts;
  return own.defined() ? own.sum(0) : own;
}

}  // namespace meshtrain
