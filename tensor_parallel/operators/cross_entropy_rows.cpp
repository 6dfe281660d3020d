#include "tensor_parallel/operators/cross_entropy_rows.h"

#include <torch/library.h>

#include <limits>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/operator.h"
#include "mesh/device/row_chunks.h"

namespace meshtrain {
namespace {

/// Returns true when the exponentials overwrite the logits. Halves are kept for the gradient: an exponential rounded to
/// a half would be rounded twice.
bool in_place(const at::Tensor& logits) {
  return logits.scalar_type() == accumulation_dtype(logits.scalar_type());
}

/// Returns the number that is subtracted from logits: their largest, or 0 when all of them are -inf, so that their
/// exponentials are 0.
at::Tensor origin(const at::Tensor& max) {
  return max.masked_fill(max.eq(-std::numeric_limits<double>::infinity()), 0).unsqueeze(1);
}

/// Returns exp(logits - max) in the accumulation dtype: in place, or in a temporary for a bounded number of rows.
at::Tensor exponentials(const at::Tensor& logits, const at::Tensor& max) {
  return logits.to(max.scalar_type()).sub_(origin(max)).exp_();
}

/// Calls piece(part) for ranges of rows whose exponentials fit a bounded temporary; part(tensor) selects these rows.
template <class Piece>
void for_rows(const at::Tensor& logits, Piece piece) {
  const int64_t element_bytes = c10::elementSize(accumulation_dtype(logits.scalar_type()));
  for_row_chunks(logits, logits.size(0), logits.size(1) * element_bytes, [&](int64_t first, int64_t count) {
    piece([&](const at::Tensor& full) { return full.narrow(0, first, count); });
  });
}

at::Tensor statistics_of(at::Tensor& logits, const at::Tensor& column, const at::Tensor& absent) {
  const at::ScalarType wide = accumulation_dtype(logits.scalar_type());
  at::Tensor statistics = at::empty({3, logits.size(0)}, logits.options().dtype(wide));
  at::Tensor max = statistics[0], sum_exp = statistics[1], label_logit = statistics[2];
  label_logit.copy_(logits.gather(1, column.unsqueeze(1)).squeeze(1)).masked_fill_(absent, 0);
  for_rows(logits, [&](const auto& part) {  // the range's logits stay in the cache
    part(max).copy_(part(logits).amax(1));
    part(sum_exp).copy_(exponentials(part(logits), part(max)).sum(1));
  });
  return statistics;
}

void gradients_of(at::Tensor& logits, const at::Tensor& own_max, const at::Tensor& max, const at::Tensor& sum_exp,
                  const at::Tensor& column, const at::Tensor& absent, const at::Tensor& ignored,
                  const at::Tensor& upstream) {
  const at::Tensor rescaled = own_max.sub(max).exp();
  const at::Tensor scale = upstream.div(sum_exp).mul_(rescaled).masked_fill_(ignored, 0).unsqueeze(1);
  const at::Tensor at_label = upstream.neg().expand_as(max).masked_fill(absent, 0).unsqueeze(1);
  const at::Tensor label = column.unsqueeze(1);
  for_rows(logits, [&](const auto& part) {
    at::Tensor to = part(logits);
    at::Tensor rows = in_place(logits) ? to : exponentials(to, part(own_max));
    rows.mul_(part(scale)).scatter_add_(1, part(label), part(at_label));
    if (!in_place(logits)) to.copy_(rows);
  });
}

// What the kernels for CUDA make.

at::Tensor statistics_on_gpu(at::Tensor& logits, const at::Tensor&, const at::Tensor&) {
  return at::empty({3, logits.size(0)}, logits.options().dtype(accumulation_dtype(logits.scalar_type())));
}

void gradients_on_gpu(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const at::Tensor&, const at::Tensor&, const at::Tensor&) {}

}  // namespace

at::Tensor row_statistics(const at::Tensor& logits, const RowLabels& labels) {
  static const Operator<decltype(statistics_of)> statistics("meshtrain::cross_entropy_statistics");
  at::Tensor from = logits;
  return statistics(from, labels.column, labels.absent);
}

void row_gradients(const at::Tensor& logits, const at::Tensor& own_max, const at::Tensor& max,
                   const at::Tensor& sum_exp, const RowLabels& labels, const at::Tensor& upstream) {
  static const Operator<decltype(gradients_of)> gradients_("meshtrain::cross_entropy_gradients_");
  at::Tensor to = logits;
  gradients_(to, own_max, max, sum_exp, labels.column, labels.absent, labels.ignored, upstream);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&statistics_of, &statistics_on_gpu>(
      library, "cross_entropy_statistics(Tensor(a!) logits, Tensor column, Tensor absent) -> Tensor");
  define<&gradients_of, &gradients_on_gpu>(
      library,
      "cross_entropy_gradients_(Tensor(a!) logits, Tensor own_max, Tensor max, Tensor sum_exp, Tensor column, "
      "Tensor absent, Tensor ignored, Tensor upstream) -> ()");
}

}  // namespace meshtrain
