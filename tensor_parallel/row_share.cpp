#include "tensor_parallel/row_share.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "mesh/box.h"
#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Group held) : group(std::move(held)) {}
  Group group;
};

void keep(AutogradContext* ctx, const Group& tp, int64_t num_rows) {
  ctx->saved_data["tp"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(tp));
  ctx->saved_data["rows"] = num_rows;
}

Group kept_group(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<GroupHolder>(ctx->saved_data["tp"].toCapsule())->group;
}

int64_t share(int64_t num_rows, const Group& tp) {
  return (num_rows + tp.size() - 1) / tp.size();
}

Range range_of(int64_t num_rows, const Group& tp) {
  const int64_t begin = std::min(share(num_rows, tp) * tp.rank(), num_rows);
  return {begin, std::min(share(num_rows, tp), num_rows - begin)};
}

at::Tensor cut(const at::Tensor& x, const Group& tp) {
  const Range own = range_of(x.size(0), tp);
  return x.narrow(0, own.offset, own.numel);
}

at::Tensor gather(const at::Tensor& own, int64_t num_rows, const Group& tp) {
  at::Tensor sent = own;
  if (const int64_t rows = share(num_rows, tp); own.size(0) < rows) {
    std::vector<int64_t> shape = own.sizes().vec();
    shape[0] = rows;
    sent = at::zeros(shape, own.options());
    sent.narrow(0, 0, own.size(0)).copy_(own);
  }
  return start_gather_rows(sent, tp.with_purpose("tp.rows")).wait().narrow(0, 0, num_rows);
}

struct OwnRows : torch::autograd::Function<OwnRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& tp) {
    keep(ctx, tp, x.size(0));
    return cut(x, tp).clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a rank's rows of the residual stream");
    return {gather(grads[0].contiguous(), ctx->saved_data["rows"].toInt(), kept_group(ctx)), at::Tensor()};
  }
};

struct AllRows : torch::autograd::Function<AllRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& own, int64_t num_rows, const Group& tp) {
    keep(ctx, tp, num_rows);
    return gather(own, num_rows, tp);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("the residual stream of all ranks' rows");
    return {cut(grads[0], kept_group(ctx)), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor own_rows(const at::Tensor& x, const Group& tp) {
  return tp.size() == 1 ? x : OwnRows::apply(x, tp);
}

at::Tensor all_rows(const at::Tensor& own, int64_t num_rows, const Group& tp) {
  return tp.size() == 1 ? own : AllRows::apply(own, num_rows, tp);
}

}  // namespace meshtrain
