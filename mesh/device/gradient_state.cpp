#include "mesh/device/gradient_state.h"

#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace meshtrain {

void GradientState::attach(const at::Tensor& leaf, std::function<void()> when_final) {
  torch::autograd::impl::set_post_acc_grad_hooks(
      leaf, std::unique_ptr<GradientState>(new GradientState(std::move(when_final))));
}

GradientState* GradientState::of(const at::Tensor& leaf) {
  if (!leaf.requires_grad()) return nullptr;
  return dynamic_cast<GradientState*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
}

}  // namespace meshtrain
