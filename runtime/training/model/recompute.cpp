#include "runtime/training/model/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "mesh/device/aten.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Body = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

struct RecomputedBody : torch::CustomClassHolder {
  explicit RecomputedBody(Body body) : function(std::move(body)) {}
  Body function;
};

void refuse_selected_gradients() {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) return;
  throw std::logic_error(
      "a recomputed part of the model supports backward() alone, not torch::autograd::grad or a backward for "
      "chosen inputs: its leaves' gradients go to their buffers");
}

struct RecomputedFunction : torch::autograd::Function<RecomputedFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs, const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<RecomputedBody>& segment) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["segment"] = c10::IValue::make_capsule(segment);
    return segment->function(inputs.vec());  // not recorded here
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a recomputed part of the model");
    refuse_selected_gradients();
    const auto segment = c10::static_intrusive_pointer_cast<RecomputedBody>(ctx->saved_data["segment"].toCapsule());
    variable_list inputs = ctx->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = inputs[i].detach();
      inputs[i].set_requires_grad(ctx->needs_input_grad(i));
    }
    at::Tensor y;
    {
      const at::AutoGradMode record(true);
      y = segment->function(inputs);
    }
    torch::autograd::backward({y}, {std::move(grads[0])});
    variable_list results;
    for (const at::Tensor& input : inputs) results.push_back(input.grad());
    results.resize(inputs.size() + 2);  // the anchor and the body have none
    return results;
  }
};

}  // namespace

Recompute Recomputation::of(int64_t block) const {
  if (block % every != 0) return Recompute::Nothing;
  int64_t in_stage = block;
  for (size_t stage = 0; stage < stages.size() && in_stage >= stages[stage]; ++stage) in_stage -= stages[stage];
  return !first || in_stage < *first ? what : Recompute::Nothing;
}

at::Tensor recomputed(const std::vector<at::Tensor>& inputs,
                      std::function<at::Tensor(const std::vector<at::Tensor>&)> function, bool trainable) {
  const bool wanted = std::ranges::any_of(inputs, [](const at::Tensor& input) { return input.requires_grad(); });
  if (!at::GradMode::is_enabled() || !(wanted || trainable)) return function(inputs);
  const at::Tensor anchor = at::empty({0}, inputs.front().options().requires_grad(false));
  anchor.set_requires_grad(trainable);  // makes the result want a gradient when no input does
  return RecomputedFunction::apply(at::TensorList(inputs), anchor,
                                   c10::make_intrusive<RecomputedBody>(std::move(function)));
}

}  // namespace meshtrain
