#include "runtime/training/trainer/outliers.h"

#include <algorithm>
#include <vector>

#include "mesh/device/aten.h"

namespace meshtrain {

Outliers::Outliers(const OutlierOptions& options, at::Device device)
    : window_(options.window),
      sigma_(options.sigma),
      recent_(at::zeros({2, window_}, at::TensorOptions(device).dtype(at::kDouble))),
      count_(at::zeros({}, recent_.options())) {}

at::Tensor Outliers::judge(const at::Tensor& loss, const at::Tensor& grad_norm) const {
  const at::NoGradGuard no_grad;
  const at::Tensor is_recorded = at::arange(window_, recent_.options()).ge(-count_ + window_).to(at::kDouble);
  const at::Tensor mean = recent_.sum(1).div(count_);
  const at::Tensor squares = recent_.sub(mean.unsqueeze(1)).square().mul(is_recorded).sum(1);
  const at::Tensor deviation = squares.div(count_ - 1).sqrt();
  const at::Tensor here = at::stack({loss.to(at::kDouble), grad_norm.to(at::kDouble)});
  const at::Tensor is_outlier = here.sub(mean).gt(deviation.mul(sigma_)).to(at::kDouble);
  const at::Tensor has_history = (count_ + 1).ge(static_cast<double>(window_ / 2)).to(at::kDouble);
  return (is_outlier[0] * static_cast<double>(kLoss) + is_outlier[1] * static_cast<double>(kGradNorm)) * has_history;
}

void Outliers::record(const at::Tensor& loss, const at::Tensor& grad_norm, const at::Tensor& non_finite) {
  const at::NoGradGuard no_grad;
  const at::Tensor kept = non_finite.ne(0).to(at::kDouble);  // 1: the record stays; at::where has no Meta kernel
  const at::Tensor newest = at::stack({loss.to(at::kDouble), grad_norm.to(at::kDouble)}).unsqueeze(1);
  const at::Tensor shifted = at::cat({recent_.narrow(1, 1, window_ - 1), newest.masked_fill(non_finite.ne(0), 0)}, 1);
  recent_.copy_(recent_ * kept + shifted * (1 - kept));
  count_.add_(non_finite.eq(0).to(at::kDouble)).clamp_max_(static_cast<double>(window_));
}

TrainingState::RecentSteps Outliers::state() const {
  const auto count = static_cast<int64_t>(count_.is_meta() ? 0 : count_.item<double>());
  const at::Tensor recorded = recent_.narrow(1, window_ - count, count).cpu().contiguous();
  const double* of = recorded.const_data_ptr<double>();
  return {{of, of + count}, {of + count, of + 2 * count}};
}

void Outliers::resume(const TrainingState::RecentSteps& state) {
  const at::NoGradGuard no_grad;
  const auto all = static_cast<int64_t>(state.losses.size()), count = std::min(all, window_);
  const at::Tensor numbers =
      at::stack({at::tensor(state.losses, at::kDouble), at::tensor(state.grad_norms, at::kDouble)});
  recent_.zero_();
  recent_.narrow(1, window_ - count, count).copy_(numbers.narrow(1, all - count, count));
  count_.fill_(static_cast<double>(count));
}

}  // namespace meshtrain
