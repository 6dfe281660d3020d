#include "tensor_parallel/vocabulary_logits.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "tensor_parallel/products/matrix_product.h"

namespace meshtrain {

VocabularyLogits::VocabularyLogits(const at::Tensor& x, const Parameter& head, const TensorParallel& tp, double softcap,
                                   const AdapterTerms& adapter)
    : group_(tp.group.with_purpose("tp.logits")),
      vocab_size_(head.global_shape[0]),
      first_(head.box.start[0]),
      valid_(head.box.size[0]) {
  if (x.dim() != 1 || x.size(0) != head.global_shape[1]) {
    std::ostringstream message;
    message << tp.group.coordinate_text() << ": logits of one token need x [" << head.global_shape[1] << "], not "
            << x.sizes();
    throw RankError<std::invalid_argument>(message.str());
  }
  const at::NoGradGuard no_grad;
  const at::Tensor row = x.unsqueeze(0);
  at::Tensor logits = product(row, head.tensor.detach());
  if (!adapter.empty()) adapter.add_to(logits, row);
  local_ = logits.squeeze(0);
  if (softcap > 0) local_.div_(softcap).tanh_().mul_(softcap);
}

VocabularyLogits::LargestLogit VocabularyLogits::largest() const {
  at::Tensor here =
      at::full({2}, -std::numeric_limits<double>::infinity(), at::kDouble);  // the value of a rank without rows
  if (valid_ > 0) {
    const auto [value, index] = local_.narrow(0, 0, valid_).max(0);
    here[0] = value.to(at::kDouble);
    here[1] = index + first_;
  }
  at::Tensor all = at::empty({2 * group_.size()}, at::kDouble);
  group_.all_gather(all, here).wait();
  const double* number = all.const_data_ptr<double>();
  int best = 0;  // ids ascend with ranks, so the first of equal logits has the lowest id
  for (int rank = 1; rank < group_.size(); ++rank) {
    const double value = number[2 * rank], before = number[2 * best];
    if (value > before || (std::isnan(value) && !std::isnan(before))) best = rank;
  }
  return {static_cast<int64_t>(number[2 * best + 1]), number[2 * best]};
}

at::Tensor VocabularyLogits::full() const {
  if (group_.size() == 1) return local_;
  at::Tensor all = at::empty({local_.size(0) * group_.size()}, local_.options());
  group_.all_gather(all, local_).wait();
  return all.narrow(0, 0, vocab_size_);
}

}  // namespace meshtrain
