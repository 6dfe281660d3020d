#include "tensor_parallel/adapter_terms.h"

#include "mesh/device/aten.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/products/matrix_product.h"

namespace meshtrain {
namespace {

/// Adds scale * a b to `to`, for a [T, r] and b [r, n]. Halves on the host are multiplied by product(), which is fast
/// on every processor.
void add_scaled(at::Tensor to, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (c10::isReducedFloatingType(a.scalar_type()) && !a.is_cuda()) {
    to.add_(product(a, b.t()), scale);
  } else {
    to.addmm_(a, b, /*beta=*/1, /*alpha=*/scale);
  }
}

}  // namespace

at::Tensor AdapterTerms::dropped(const at::Tensor& x) const {
  return tokens.defined() && dropout.probability > 0 ? drop(x, tokens, first_feature, dropout) : x;
}

at::Tensor AdapterTerms::add_to(at::Tensor& y, const at::Tensor& x) const {
  const at::Tensor hidden = product(dropped(x), join(a));
  int64_t first = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t rank = a[i].size(0);
    add_scaled(y.narrow(1, first_columns[i], b[i].size(0)), hidden.narrow(1, first, rank), b[i].t(), scales[i]);
    first += rank;
  }
  return hidden;
}

at::Tensor AdapterTerms::hidden_gradient(const at::Tensor& dy) const {
  int64_t total = 0, first = 0;
  for (const at::Tensor& factor : a) total += factor.size(0);
  at::Tensor gradient = at::empty({dy.size(0), total}, dy.options());
  for (size_t i = 0; i < b.size(); ++i) {
    const at::Tensor part = gradient.narrow(1, first, b[i].size(1));
    product_into(part, dy.narrow(1, first_columns[i], b[i].size(0)), b[i].t());
    if (scales[i] != 1) at::Tensor(part).mul_(scales[i]);
    first += b[i].size(1);
  }
  return gradient;
}

void AdapterTerms::add_input_gradient(at::Tensor& dx, const at::Tensor& hidden_gradient) const {
  if (tokens.defined() && dropout.probability > 0) {
    dx.add_(dropped(product(hidden_gradient, join(a).t())));
  } else {
    add_scaled(dx, hidden_gradient, join(a), 1);
  }
}

}  // namespace meshtrain
