#include "runtime/training/model/grouped_linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/products/matrix_product.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of the backward besides x. The leaf is here for the reason in linear_function.cpp.
struct Experts : torch::CustomClassHolder {
  Experts(at::Tensor leaf, std::vector<int64_t> rows, LayerInput::Again input_again)
      : weight(std::move(leaf)), counts(std::move(rows)), again(std::move(input_again)) {}

  /// Calls `use` with the number of each expert, its first row and the number of its rows.
  template <class Use>
  void for_each(const Use& use) const {
    int64_t row = 0;
    for (size_t expert = 0; expert < counts.size(); ++expert) {
      use(static_cast<int64_t>(expert), row, counts[expert]);
      row += counts[expert];
    }
  }

  at::Tensor weight;
  std::vector<int64_t> counts;
  LayerInput::Again again;
};

using ExpertsPointer = c10::intrusive_ptr<Experts>;

/// Returns [R, n], of each expert its rows of x times the transpose of its matrix, or the matrix itself.
at::Tensor grouped_product(const at::Tensor& x, const Experts& experts, bool transposed) {
  at::Tensor y = at::empty({x.size(0), experts.weight.size(transposed ? 2 : 1)}, x.options());
  experts.for_each([&](int64_t expert, int64_t row, int64_t count) {
    if (count == 0) return;
    const at::Tensor matrix = experts.weight[expert];
    product_into(y.narrow(0, row, count), x.narrow(0, row, count), transposed ? matrix.t() : matrix);
  });
  return y;
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const ExpertsPointer& experts, const std::vector<at::Tensor>* kept) {
    if (weight.requires_grad()) ctx->save_for_backward(*kept);
    ctx->saved_data["experts"] = c10::IValue::make_capsule(experts);
    return grouped_product(x, *experts, /*transposed=*/false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a layer of experts");
    const auto experts = c10::static_intrusive_pointer_cast<Experts>(ctx->saved_data["experts"].toCapsule());
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor grad_x, grad_weight;
    if (ctx->needs_input_grad(0)) grad_x = grouped_product(dy, *experts, /*transposed=*/true);
    if (ctx->needs_input_grad(1)) {
      const variable_list kept = ctx->get_saved_variables();
      const at::Tensor x = experts->again ? experts->again(kept) : kept[0];
      GradientTarget target = gradient_target(experts->weight);
      if (!target.buffer.defined()) target = {grad_weight = at::empty_like(experts->weight), /*unwritten=*/true};
      experts->for_each([&](int64_t expert, int64_t row, int64_t count) {
        const at::Tensor into = target.buffer[expert];
        if (count > 0) {
          add_product(into, dy.narrow(0, row, count), x.narrow(0, row, count), target.unwritten);
        } else if (target.unwritten) {
          into.zero_();
        }
      });
    }
    return {grad_x, grad_weight, {}, {}};
  }
};

}  // namespace

at::Tensor grouped_linear(const LayerInput& x, const at::Tensor& weight, const std::vector<int64_t>& counts) {
  return GroupedLinear::apply(x.value, weight, c10::make_intrusive<Experts>(weight, counts, x.again), &x.kept);
}

}  // namespace meshtrain
