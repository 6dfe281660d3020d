#include "tensor_parallel/collectives.h"

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

at::Tensor empty_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.at(0) = rows;
  return at::empty(shape, x.options());
}

}  // namespace

PendingTensor start_gather_rows(const at::Tensor& x, const Group& group) {
  if (group.size() == 1) return {x, {}};
  PendingTensor rows{empty_rows(x, x.size(0) * group.size()), {}};
  rows.work = group.all_gather(rows.tensor, x.contiguous());
  return rows;
}

PendingTensor start_scatter_rows(const at::Tensor& x, const Group& group) {
  if (group.size() == 1) return {x, {}};
  PendingTensor rows{empty_rows(x, x.size(0) / group.size()), {}};
  rows.work = group.reduce_scatter(rows.tensor, x.contiguous());
  return rows;
}

}  // namespace meshtrain
