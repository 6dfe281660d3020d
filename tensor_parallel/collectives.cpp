#include "tensor_parallel/collectives.h"

#include "mesh/device/empty_rows.h"

namespace meshtrain {

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
