#include "runtime/train/gradient_sums.h"

namespace meshtrain {

GradientSums::GradientSums(const DeviceMesh& mesh)
    : context_(mesh.group("cp").with_purpose("cp.gradients")),
      context_tensor_(mesh.group(std::set<std::string>{"cp", "tp"}).with_purpose("tp.gradients")) {}

void GradientSums::issue(const FlatBuffer& buffer) {
  const int64_t partial = buffer.partial_numel();
  if (partial > 0 && context_tensor_.size() > 1) {
    at::Tensor gradients = buffer.gradients().narrow(0, 0, partial);
    works_.push_back(context_tensor_.all_reduce(gradients));
  }
  if (context_.size() > 1) {
    at::Tensor gradients = buffer.gradients().narrow(0, partial, buffer.numel() - partial);
    works_.push_back(context_.all_reduce(gradients));
  }
}

void GradientSums::wait() {
  for (const Work& work : works_) work.wait();
  works_.clear();
}

}  // namespace meshtrain
