#include "tensor_parallel/products/grouped_product.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "mesh/device/aten.h"
#include "mesh/device/meta_device.h"
#include "tensor_parallel/products/few_rows.h"
#include "tensor_parallel/products/matrix_product.h"
#include "tensor_parallel/products/product_library.h"

namespace meshtrain {
namespace {

/// Returns true when product() is faster than product_into() by more than a copy of its result costs: the loops for few
/// rows, and oneDNN where it does not write in place.
bool better_copied(const at::Tensor& a) {
  if (!is_host(a.device())) return false;
  return a.size(0) <= few_rows::kMost || (a.scalar_type() == at::kFloat && !onednn_multiplies_in_place());
}

}  // namespace

at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& w, const GroupStarts& starts) {
  const at::AutoDispatchBelowADInplaceOrView below;  // views for autograd take longer than the product of a few rows
  at::Tensor out = at::empty({x.size(0), w.size(1)}, x.options());
  for_alike_groups(x, starts, [&](int64_t group, int64_t first, int64_t count) {
    if (count == 0) return;
    const at::Tensor rows = x.narrow(0, first, count), matrix = w.select(0, group), to = out.narrow(0, first, count);
    if (better_copied(rows)) {
      to.copy_(product(rows, matrix));
    } else {
      product_into(to, rows, matrix);
    }
  });
  return out;
}

void add_grouped_product(const at::Tensor& into, const at::Tensor& a, const at::Tensor& b, const GroupStarts& starts,
                         bool unwritten) {
  for_alike_groups(b, starts, [&](int64_t group, int64_t first, int64_t count) {
    const at::Tensor to = into.select(0, group);
    if (count > 0) {
      add_product(to, a.narrow(0, first, count), b.narrow(0, first, count), unwritten);
    } else if (unwritten) {
      to.zero_();
    }
  });
}

}  // namespace meshtrain
