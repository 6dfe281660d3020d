#include "runtime/training/model/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <stdexcept>
#include <utility>

#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RecomputedBody : torch::CustomClassHolder {
  explicit RecomputedBody(std::function<at::Tensor(const at::Tensor&)> body) : function(std::move(body)) {}
  std::function<at::Tensor(const at::Tensor&)> function;
};

void refuse_selected_gradients() {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) return;
  throw std::logic_error(
      "a recomputed part of the model supports backward() alone, not torch::autograd::grad or a backward for "
      "chosen inputs: its leaves' gradients go to their buffers");
}

struct RecomputedFunction : torch::autograd::Function<RecomputedFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<RecomputedBody>& segment) {
    ctx->save_for_backward({x});
    ctx->saved_data["segment"] = c10::IValue::make_capsule(segment);
    return segment->function(x);  // not recorded here
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a recomputed part of the model");
    refuse_selected_gradients();
    const auto segment = c10::static_intrusive_pointer_cast<RecomputedBody>(ctx->saved_data["segment"].toCapsule());
    at::Tensor x = ctx->get_saved_variables()[0].detach();
    x.set_requires_grad(ctx->needs_input_grad(0));
    at::Tensor y;
    {
      const at::AutoGradMode record(true);
      y = segment->function(x);
    }
    torch::autograd::backward({y}, {std::move(grads[0])});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> function, bool trainable) {
  if (!at::GradMode::is_enabled() || !(x.requires_grad() || trainable)) return function(x);
  const at::Tensor anchor = at::empty({0}, x.options().requires_grad(false));
  anchor.set_requires_grad(trainable);  // makes the result want a gradient when x does not
  return RecomputedFunction::apply(x, anchor, c10::make_intrusive<RecomputedBody>(std::move(function)));
}

}  // namespace meshtrain
