#include "tests/expert_parallel/naive.h"

#include "tests/support/world.h"

namespace meshtrain::testing {

ExpertCase random_case(int64_t tokens) {
  ExpertCase shape;
  shape.tokens = tokens;
  const at::Tensor order = random_tensor({tokens, shape.num_experts - 1}, 7).argsort(/*stable=*/true, -1);
  shape.choices = order.narrow(1, 0, shape.top_k).contiguous();
  return shape;
}

ExpertInputs::ExpertInputs(const ExpertCase& shape, at::ScalarType dtype, at::ScalarType weights_dtype) {
  const int64_t experts_count = shape.num_experts, width = shape.width, features = shape.features;
  uint64_t seed = 1;
  const auto leaf = [&](at::IntArrayRef sizes, at::ScalarType own) {
    return random_tensor(sizes, seed++).to(own).requires_grad_();
  };
  x = leaf({shape.tokens, width}, dtype);
  weights = random_tensor({shape.tokens, shape.top_k}, seed++).softmax(-1).to(weights_dtype).requires_grad_();
  experts.gate_up = leaf({experts_count, 2 * features, width}, dtype);
  experts.down = leaf({experts_count, width, features}, dtype);
  if (!shape.biases) return;
  experts.gate_up_bias = leaf({experts_count, 2 * features}, dtype);
  experts.down_bias = leaf({experts_count, width}, dtype);
}

std::vector<at::Tensor> ExpertInputs::leaves() const {
  std::vector<at::Tensor> all = {x, weights, experts.gate_up, experts.down};
  if (experts.gate_up_bias.defined()) {
    all.push_back(experts.gate_up_bias);
    all.push_back(experts.down_bias);
  }
  return all;
}

GatedActivation activation_of(const ExpertCase& shape) {
  return shape.clamped ? clamped_activation(1.702, shape.limit, GateLayout::Interleaved) : silu_activation();
}

at::Tensor by_mixture(const ExpertCase& shape, const ExpertInputs& inputs, bool recompute) {
  return mixture(inputs.x, inputs.weights, sort_by_expert(shape.choices, shape.num_experts), inputs.experts,
                 activation_of(shape), recompute);
}

at::Tensor by_definition(const ExpertCase& shape, const ExpertInputs& inputs) {
  const ExpertWeights& experts = inputs.experts;
  const at::Tensor dense = at::zeros({shape.tokens, shape.num_experts}, inputs.weights.options().requires_grad(false))
                               .scatter_add(1, shape.choices, inputs.weights);
  at::Tensor sum = at::zeros_like(inputs.x);
  for (int64_t expert = 0; expert < shape.num_experts; ++expert) {
    at::Tensor gate_up = at::matmul(inputs.x, experts.gate_up[expert].t());
    if (shape.biases) gate_up = gate_up + experts.gate_up_bias[expert];
    at::Tensor hidden;
    if (shape.clamped) {
      const at::Tensor pairs = gate_up.view({shape.tokens, shape.features, 2});
      const at::Tensor gate = pairs.select(2, 0).clamp_max(shape.limit),
                       up = pairs.select(2, 1).clamp(-shape.limit, shape.limit);
      hidden = (up + 1) * gate * at::sigmoid(gate * 1.702);
    } else {
      hidden = at::silu(gate_up.narrow(1, 0, shape.features)) * gate_up.narrow(1, shape.features, shape.features);
    }
    at::Tensor y = at::matmul(hidden, experts.down[expert].t());
    if (shape.biases) y = y + experts.down_bias[expert];
    sum = sum + y * dense.select(1, expert).unsqueeze(1);
  }
  return sum;
}

}  // namespace meshtrain::testing
