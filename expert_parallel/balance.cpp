#include "expert_parallel/balance.h"

#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor masked(const at::Tensor& rows, const at::Tensor& mask) {
  return mask.defined() ? rows * mask.to(rows.scalar_type()).view({-1, 1}) : rows;
}

struct AttachLoss : torch::autograd::Function<AttachLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& carrier, const at::Tensor& loss, double coefficient,
                            const at::Tensor& seed) {
    ctx->save_for_backward({seed});
    ctx->saved_data["coefficient"] = coefficient;
    ctx->saved_data["dtype"] = static_cast<int64_t>(loss.scalar_type());
    return carrier;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const at::Tensor seed = ctx->get_saved_variables()[0].to(dtype);
    return {grads[0], seed * ctx->saved_data["coefficient"].toDouble(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor choice_counts(const at::Tensor& choices, int64_t num_experts, int64_t sequences, const at::Tensor& mask) {
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = at::arange(sequences, choices.options()) * num_experts;
  const at::Tensor cells = choices.reshape({sequences, choices.numel() / sequences}) + numbers.unsqueeze(1);
  const at::Tensor each = mask.defined() ? mask.to(at::kLong).unsqueeze(1).expand(choices.sizes()).flatten()
                                         : at::ones_like(cells).flatten();
  const at::Tensor counts = at::zeros({sequences * num_experts}, choices.options());
  return at::Tensor(counts).scatter_add_(0, cells.flatten(), each).view({sequences, num_experts});
}

at::Tensor balance_loss(const at::Tensor& probabilities, const at::Tensor& counts, int64_t top_k,
                        const at::Tensor& mask) {
  const int64_t sequences = counts.size(0), num_experts = counts.size(1);
  const at::Tensor wide_counts = counts.to(probabilities.scalar_type());
  const at::Tensor tokens = (wide_counts.sum(1, /*keepdim=*/true) / top_k).clamp_min(1);
  const at::Tensor factors = wide_counts * num_experts / (tokens * tokens * top_k);
  return (masked(probabilities, mask).view({sequences, probabilities.size(0) / sequences, num_experts}).sum(1) *
          factors)
      .sum();
}

at::Tensor joined_balance_loss(const std::vector<at::Tensor>& probabilities, const std::vector<at::Tensor>& choices,
                               const at::Tensor& mask) {
  const int64_t num_experts = probabilities[0].size(1);
  at::Tensor counts, sums;
  for (size_t layer = 0; layer < probabilities.size(); ++layer) {
    const at::Tensor layer_counts = choice_counts(choices[layer], num_experts, 1, mask)[0];
    const at::Tensor layer_sums = masked(probabilities[layer], mask).sum(0);
    counts = counts.defined() ? counts + layer_counts : layer_counts;
    sums = sums.defined() ? sums + layer_sums : layer_sums;
  }
  const at::Tensor wide_counts = counts.to(sums.scalar_type());
  const at::Tensor tokens = (wide_counts.sum() / choices[0].size(1)).clamp_min(1);
  return (wide_counts / tokens * (sums / tokens)).sum() * num_experts;
}

at::Tensor router_z_loss(const at::Tensor& logits, const at::Tensor& mask) {
  const at::Tensor wide = logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  // at::logsumexp has no Meta kernel.
  const at::Tensor largest = wide.detach().amax(1, /*keepdim=*/true);
  const at::Tensor logsumexp = (wide - largest).exp().sum(1, /*keepdim=*/true).log() + largest;
  return masked(logsumexp.square(), mask).sum();
}

at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double coefficient, const at::Tensor& seed) {
  const at::Tensor factor = seed.defined() ? seed : at::ones({}, loss.options().requires_grad(false));
  return AttachLoss::apply(carrier, loss, coefficient, factor);
}

void update_selection_bias(const at::Tensor& bias, const at::Tensor& counts, double rate, bool centred) {
  const at::NoGradGuard no_grad;
  const at::Tensor signs = (counts.sum() - counts * counts.size(0)).sign();  // of mean - count, in whole numbers
  at::Tensor added = signs.to(at::kDouble);
  if (centred) added.sub_(signs.sum().to(at::kDouble) / counts.size(0));
  at::Tensor(bias).add_(added.mul_(rate).to(bias.scalar_type()));
}

}  // namespace meshtrain
