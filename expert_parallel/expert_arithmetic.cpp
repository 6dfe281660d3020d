#include "expert_parallel/expert_arithmetic.h"

#include <algorithm>
#include <utility>

#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

void add_biases(const at::Tensor& y, const at::Tensor& biases, const GroupStarts& starts) {
  if (!biases.defined()) return;
  for_alike_groups(y, starts, [&](int64_t expert, int64_t first, int64_t count) {
    if (count > 0) y.narrow(0, first, count).add_(biases.select(0, expert));
  });
}

at::Tensor gate_up_of(const ExpertLayer& layer, const at::Tensor& x, const GroupStarts& starts) {
  at::Tensor gate_up = grouped_product(x, layer.weights.gate_up, starts);
  add_biases(gate_up, layer.weights.gate_up_bias, starts);
  return gate_up;
}

/// Calls block(first, count, starts of its rows) for the blocks of `rows` rows: at least for one, which may be empty.
template <class Block>
void for_blocks(const GroupStarts& starts, int64_t rows, const Block& block) {
  int64_t first = 0;
  do {
    const int64_t count = std::min(rows, starts.back() - first);
    GroupStarts own;
    for (const int64_t start : starts) own.push_back(std::clamp<int64_t>(start - first, 0, count));
    block(first, count, own);
    first += rows;
  } while (first < starts.back());
}

/// Adds <dy, bias of its expert> to the sum of each row.
void add_bias_dots(const at::Tensor& sums, const ExpertWeights& experts, const GroupStarts& starts,
                   const at::Tensor& dy) {
  if (experts.down_bias.defined()) {
    for_alike_groups(dy, starts, [&](int64_t expert, int64_t first, int64_t count) {
      if (count == 0) return;
      add_row_dots(sums.narrow(0, first, count), dy.narrow(0, first, count),
                   experts.down_bias.select(0, expert).detach().unsqueeze(0));
    });
  }
}

/// Computes what the gradients of rows before their weights are products of, and the gradients of the weights, which
/// are <dy, row before its weight> = <d_hidden, hidden> + <dy, bias>.
WeightedGradients weighted_gradients(const ExpertLayer& layer, const ExpertActivations& kept, const at::Tensor& weights,
                                     at::Tensor d_hidden, const ExpertNeeds& needs) {
  const GatedActivation& activation = layer.activation;
  if (activation.weighted_backward) {
    if (auto all = activation.weighted_backward(d_hidden, kept.gate_up, weights)) return std::move(*all);
  }
  WeightedGradients gradients;
  gradients.hidden = kept.hidden.defined() ? kept.hidden : activation.forward(kept.gate_up);
  if (needs.weights) {
    const bool halves = c10::isReducedFloatingType(d_hidden.scalar_type());
    gradients.weights =
        at::zeros({d_hidden.size(0)}, d_hidden.options().dtype(halves ? at::kFloat : d_hidden.scalar_type()));
    add_row_dots(gradients.weights, d_hidden, gradients.hidden);
  }
  if (needs.down) {
    if (kept.hidden.defined()) gradients.hidden = gradients.hidden.clone();
    scale_rows(gradients.hidden, weights);
  }
  scale_rows(d_hidden, weights);
  gradients.gate_up = activation.backward(d_hidden, kept.gate_up);
  return gradients;
}

at::Tensor forward_at_once(const ExpertLayer& layer, const at::Tensor& x, const at::Tensor& weights,
                           const GroupStarts& starts, ExpertActivations& kept) {
  kept.gate_up = gate_up_of(layer, x, starts);
  const at::Tensor hidden = layer.activation.forward(kept.gate_up);
  kept.hidden = layer.recompute ? at::Tensor() : hidden;
  const at::Tensor y = grouped_product(hidden, layer.weights.down, starts);
  add_biases(y, layer.weights.down_bias, starts);
  scale_rows(y, weights);
  return y;
}

ExpertGradients backward_at_once(const ExpertLayer& layer, const std::function<at::Tensor()>& x,
                                 const at::Tensor& weights, const GroupStarts& starts, const ExpertActivations& kept,
                                 const at::Tensor& dy, const ExpertNeeds& needs) {
  ExpertGradients gradients;
  const auto [d_gate_up, hidden, d_weights] =
      weighted_gradients(layer, kept, weights, grouped_product(dy, layer.weights.down.transpose(1, 2), starts), needs);
  if (needs.weights) {
    add_bias_dots(d_weights, layer.weights, starts, dy);
    gradients.weights = d_weights.to(weights.scalar_type());
  }
  if (needs.x) gradients.x = grouped_product(d_gate_up, layer.weights.gate_up.transpose(1, 2), starts);
  gradients.operands = ExpertOperands{dy, hidden, weights, d_gate_up, x, starts};
  return gradients;
}

}  // namespace

ExpertWeights ExpertWeights::part(int64_t first, int64_t count) const {
  const auto narrow = [&](const at::Tensor& of) { return of.defined() ? of.narrow(0, first, count) : of; };
  return {narrow(gate_up), narrow(down), narrow(gate_up_bias), narrow(down_bias)};
}

at::Tensor expert_forward(const ExpertLayer& layer, const at::Tensor& x, const at::Tensor& weights,
                          const GroupStarts& starts, ExpertActivations& kept) {
  if (layer.rows_of_block == 0) return forward_at_once(layer, x, weights, starts, kept);
  const at::Tensor y = at::empty({x.size(0), layer.weights.down.size(1)}, x.options());
  for_blocks(starts, layer.rows_of_block, [&](int64_t first, int64_t count, const GroupStarts& own) {
    ExpertActivations forgotten;
    y.narrow(0, first, count)
        .copy_(forward_at_once(layer, x.narrow(0, first, count), weights.narrow(0, first, count), own, forgotten));
  });
  return y;
}

ExpertGradients expert_backward(const ExpertLayer& layer, const std::function<at::Tensor()>& x,
                                const at::Tensor& weights, const GroupStarts& starts, const ExpertActivations& kept,
                                const at::Tensor& dy, const ExpertNeeds& needs,
                                const std::function<void(const ExpertOperands&)>& use) {
  if (layer.rows_of_block == 0) return backward_at_once(layer, x, weights, starts, kept, dy, needs);
  const at::Tensor all = x();
  ExpertGradients gradients;
  if (needs.x) gradients.x = at::empty_like(all);
  if (needs.weights) gradients.weights = at::empty_like(weights);
  for_blocks(starts, layer.rows_of_block, [&](int64_t first, int64_t count, const GroupStarts& own) {
    const auto rows = [&](const at::Tensor& of) { return of.narrow(0, first, count); };
    const auto own_x = [own_rows = rows(all)] { return own_rows; };
    const ExpertActivations again = {gate_up_of(layer, own_x(), own), {}};
    const ExpertGradients block = backward_at_once(layer, own_x, rows(weights), own, again, rows(dy), needs);
    if (needs.x) rows(gradients.x).copy_(block.x);
    if (needs.weights) rows(gradients.weights).copy_(block.weights);
    use(*block.operands);
  });
  return gradients;
}

}  // namespace meshtrain
