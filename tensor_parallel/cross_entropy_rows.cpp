#include "tensor_parallel/cross_entropy_rows.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "mesh/half_precision.h"
#include "mesh/operator.h"
#include "tensor_parallel/row_chunks.h"

namespace meshtrain {
namespace {

/// Whether the exponentials take the place of the logits. Halves are kept for the gradient instead, as a rounded
/// exponential would be rounded twice.
bool in_place(const at::Tensor& logits, const at::Tensor& max) {
  return logits.scalar_type() == max.scalar_type();
}

/// exp(logits - max), in the accumulation dtype: in place, or of a bounded number of rows.
at::Tensor exponentials(const at::Tensor& logits, const at::Tensor& max) {
  return logits.to(max.scalar_type()).sub_(max.unsqueeze(1)).exp_();
}

/// piece(part) for ranges of rows whose exponentials are a bounded temporary, `part` taking those rows of a tensor.
template <class Piece>
void for_rows(const at::Tensor& logits, const at::Tensor& max, Piece piece) {
  const int64_t row_bytes = logits.size(1) * static_cast<int64_t>(max.element_size());
  for_row_chunks(logits.size(0), row_bytes, [&](int64_t first, int64_t count) {
    piece([&](const at::Tensor& whole) { return whole.narrow(0, first, count); });
  });
}

at::Tensor maxima(const at::Tensor& logits) {
  return logits.amax(1).to(accumulation_dtype(logits.scalar_type()));
}

void sums_of(at::Tensor& logits, const at::Tensor& max, const at::Tensor& column, const at::Tensor& absent,
             at::Tensor& sums) {
  at::Tensor sum_exp = sums[0], label_logit = sums[1];
  label_logit.copy_(logits.gather(1, column.unsqueeze(1)).squeeze(1)).masked_fill_(absent, 0);
  for_rows(logits, max, [&](const auto& part) {
    at::Tensor rows = part(sum_exp);
    rows.copy_(exponentials(part(logits), part(max)).sum(1));
  });
}

void gradients_of(at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp, const at::Tensor& column,
                  const at::Tensor& absent, const at::Tensor& ignored, const at::Tensor& upstream) {
  const at::Tensor scale = upstream.div(sum_exp).masked_fill_(ignored, 0).unsqueeze(1);
  const at::Tensor at_label = upstream.neg().expand_as(max).masked_fill(absent, 0).unsqueeze(1);
  const at::Tensor label = column.unsqueeze(1);
  for_rows(logits, max, [&](const auto& part) {
    at::Tensor to = part(logits);
    at::Tensor rows = in_place(logits, max) ? to : exponentials(to, part(max));
    rows.mul_(part(scale)).scatter_add_(1, part(label), part(at_label));
    if (!in_place(logits, max)) to.copy_(rows);
  });
}

}  // namespace

at::Tensor row_maxima(const at::Tensor& logits) {
  static const Operator<decltype(maxima)> maxima_of("meshtrain::cross_entropy_maxima");
  return maxima_of(logits);
}

void row_sums(const at::Tensor& logits, const at::Tensor& max, const RowLabels& labels, const at::Tensor& sums) {
  static const Operator<decltype(sums_of)> sums_("meshtrain::cross_entropy_sums_");
  at::Tensor from = logits, to = sums;
  sums_(from, max, labels.column, labels.absent, to);
}

void row_gradients(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp, const RowLabels& labels,
                   const at::Tensor& upstream) {
  static const Operator<decltype(gradients_of)> gradients_("meshtrain::cross_entropy_gradients_");
  at::Tensor to = logits;
  gradients_(to, max, sum_exp, labels.column, labels.absent, labels.ignored, upstream);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define(library, "cross_entropy_maxima(Tensor logits) -> Tensor", maxima);
  define(library,
         "cross_entropy_sums_(Tensor(a!) logits, Tensor max, Tensor column, Tensor absent, Tensor(b!) sums) -> ()",
         sums_of);
  define(library,
         "cross_entropy_gradients_(Tensor(a!) logits, Tensor max, Tensor sum_exp, Tensor column, Tensor absent, "
         "Tensor ignored, Tensor upstream) -> ()",
         gradients_of);
}

}  // namespace meshtrain
