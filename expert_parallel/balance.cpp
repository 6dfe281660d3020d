#include "expert_parallel/balance.h"

#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

at::Tensor choice_counts(const at::Tensor& choices, int64_t num_experts, const at::Tensor& sequence_of,
                         int64_t sequences) {
  const at::NoGradGuard no_grad;
  const at::Tensor cells = (choices + (sequence_of * num_experts).unsqueeze(1)).flatten();
  const at::Tensor counts = at::zeros({sequences * num_experts}, choices.options());
  return at::Tensor(counts).scatter_add_(0, cells, at::ones_like(cells)).view({sequences, num_experts});
}

at::Tensor sums_by_sequence(const at::Tensor& probabilities, const at::Tensor& sequence_of, int64_t sequences) {
  const at::Tensor numbers = at::arange(sequences, sequence_of.options()).unsqueeze(1);
  return numbers.eq(sequence_of).to(probabilities.scalar_type()).mm(probabilities);
}

at::Tensor balance_factors(const at::Tensor& counts, int64_t top_k, at::ScalarType dtype) {
  const at::Tensor wide_counts = counts.to(dtype);
  const at::Tensor tokens = (wide_counts.sum(1, /*keepdim=*/true) / top_k).clamp_min(1);
  return wide_counts * counts.size(1) / (tokens * tokens * top_k);
}

at::Tensor router_z_loss(const at::Tensor& logits) {
  const at::Tensor wide = logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  // at::logsumexp has no Meta kernel.
  const at::Tensor largest = wide.detach().amax(1, /*keepdim=*/true);
  return ((wide - largest).exp().sum(1, /*keepdim=*/true).log() + largest).square().sum();
}

at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double coefficient, const at::Tensor& seed) {
  return AttachLoss::apply(carrier, loss, coefficient, seed);
}

at::Tensor selection_bias_update(const at::Tensor& counts, double rate) {
  const at::NoGradGuard no_grad;
  // mean - count has the sign of sum - E count, without a division.
  return (counts.sum() - counts * counts.size(0)).sign() * rate;
}

}  // namespace meshtrain
