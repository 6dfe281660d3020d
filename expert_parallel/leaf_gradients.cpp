#include "expert_parallel/leaf_gradients.h"

#include <algorithm>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain {

std::vector<at::Tensor> ExpertLeaves::of(const ExpertWeights& experts) {
  std::vector<at::Tensor> all = {experts.gate_up, experts.down};
  for (const at::Tensor& bias : {experts.gate_up_bias, experts.down_bias}) {
    if (bias.defined()) all.push_back(bias);
  }
  return all;
}

ExpertLeaves::ExpertLeaves(const ExpertWeights& experts, std::vector<bool> needed) : needed_(std::move(needed)) {
  leaves_ = {{GateUp, experts.gate_up}, {Down, experts.down}};
  if (experts.gate_up_bias.defined()) leaves_.push_back({GateUpBias, experts.gate_up_bias});
  if (experts.down_bias.defined()) leaves_.push_back({DownBias, experts.down_bias});
}

std::vector<at::Tensor> ExpertLeaves::needed() const {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (needed_[i]) all.push_back(leaves_[i].tensor);
  }
  return all;
}

bool ExpertLeaves::can_defer() const {
  const std::vector<at::Tensor> all = needed();
  return !all.empty() && std::ranges::all_of(all, can_be_deferred);
}

void ExpertLeaves::begin(torch::autograd::variable_list& results, size_t first) {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!needed_[i]) continue;
    leaves_[i].target = gradient_target(leaves_[i].tensor);
    if (leaves_[i].target.buffer.defined()) continue;
    const at::Tensor& tensor = leaves_[i].tensor;
    results[first + i] = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
    leaves_[i].target = {results[first + i], /*unwritten=*/true};
  }
}

void ExpertLeaves::write(const ExpertOperands& operands, Range experts, bool is_first) const {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!needed_[i]) continue;
    const auto& [buffer, unwritten] = leaves_[i].target;
    write(leaves_[i].kind, operands, buffer.narrow(0, experts.offset, experts.numel), unwritten && is_first);
  }
}

void ExpertLeaves::write(Kind kind, const ExpertOperands& operands, const at::Tensor& into, bool unwritten) {
  const auto& [dy, weighted, weights, d_gate_up, x, starts] = operands;
  switch (kind) {
    case GateUp:
      return add_grouped_product(into, d_gate_up, x(), starts, unwritten);
    case Down:
      return add_grouped_product(into, dy, weighted, starts, unwritten);
    case GateUpBias:
      return for_alike_groups(into, starts, [&](int64_t expert, int64_t first, int64_t count) {
        const at::Tensor to = into.select(0, expert);
        const at::Tensor sum = operands.d_gate_up.narrow(0, first, count).sum(0, /*keepdim=*/false, to.scalar_type());
        unwritten ? to.copy_(sum) : to.add_(sum);
      });
    case DownBias:
      return add_grouped_product(into.unsqueeze(2), dy, weights.to(dy.scalar_type()).unsqueeze(1), starts, unwritten);
  }
}

}  // namespace meshtrain
