#include "tensor_parallel/products/deferred.h"

#include <memory>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/gradient_state.h"

namespace meshtrain {
namespace {

// Not a thread_local variable: LibTorch takes this one along to the threads in which it runs a backward. LibTorch
// itself has no information of this kind.
constexpr auto kKind = c10::DebugInfoKind::PRODUCER_INFO;

struct Target : c10::DebugInfoBase {
  explicit Target(DeferredGradients& all) : gradients(&all) {}
  DeferredGradients* gradients;
};

void start(const DeferredGradient& gradient) {
  if (gradient.start) gradient.start();
}

}  // namespace

void DeferredGradients::add(DeferredGradient gradient) {
  for (const at::Tensor& leaf : gradient.leaves) GradientState::of(leaf)->defer();
  gradients_.push_back(std::move(gradient));
}

void DeferredGradients::compute() {
  const at::NoGradGuard no_grad;
  if (!gradients_.empty()) start(gradients_.front());
  while (!gradients_.empty()) {
    const DeferredGradient gradient = std::move(gradients_.front());
    gradients_.pop_front();
    if (!gradients_.empty()) start(gradients_.front());
    gradient.compute();
    for (const at::Tensor& leaf : gradient.leaves) GradientState::of(leaf)->end_deferred();
  }
}

DeferringBackward::DeferringBackward(DeferredGradients& gradients)
    : guard_(kKind, std::make_shared<Target>(gradients)) {}

DeferredGradients* DeferringBackward::current() {
  const auto* const target = static_cast<const Target*>(c10::ThreadLocalDebugInfo::get(kKind));
  return target == nullptr ? nullptr : target->gradients;
}

}  // namespace meshtrain
