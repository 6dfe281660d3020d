#include "expert_parallel/row_arithmetic.h"

#include <torch/library.h>

#include <optional>
#include <vector>

#include "expert_parallel/row_loops_host.h"
#include "mesh/device/aten.h"
#include "mesh/device/empty_rows.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/meta_device.h"
#include "mesh/device/operator.h"
#include "mesh/device/row_chunks.h"

namespace meshtrain {
namespace {

at::ScalarType sum_dtype(const at::Tensor& tensor) {
  return c10::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

/// Returns the bytes of a row of `width` sums of elements like those of `tensor`.
int64_t bytes_of_sums(const at::Tensor& tensor, int64_t width) {
  return width * static_cast<int64_t>(c10::elementSize(sum_dtype(tensor)));
}

/// Returns true when the loops of row_loops_host.h take the rows.
bool has_row_loops(const at::Tensor& rows) {
  return is_host(rows.device()) && has_lanes(rows.scalar_type()) && rows.is_contiguous();
}

at::Tensor slots_on_host(const at::Tensor& y, const at::Tensor& rows, const std::optional<at::Tensor>& left_out) {
  const int64_t slots = rows.size(1), width = y.size(1);
  const at::Tensor out = at::empty({rows.size(0), width}, y.options());
  for_lane_rows(y, rows.size(0), slots * width, [&]<class Set, class T>(Set, T, int64_t first, int64_t count) {
    row_loops_host::add_slots<Set>(y.const_data_ptr<T>(), rows.const_data_ptr<int64_t>() + first * slots,
                                   left_out ? left_out->const_data_ptr<bool>() + first * slots : nullptr, count, slots,
                                   width, out.data_ptr<T>() + first * width);
  });
  return out;
}

void scale_on_host(at::Tensor y, const at::Tensor& factors) {
  for_lane_rows(y, y.size(0), y.size(1), [&]<class Set, class T>(Set, T, int64_t first, int64_t count) {
    row_loops_host::scale<Set>(y.data_ptr<T>() + first * y.size(1), factors.const_data_ptr<float>() + first, count,
                               y.size(1));
  });
}

}  // namespace

at::Tensor rows_at(const at::Tensor& tensor, const at::Tensor& numbers) {
  const at::Tensor in_order = numbers.contiguous();  // as index_select would make it, unseen on the Meta device
  if (!tensor.is_meta()) return tensor.index_select(0, in_order);
  return empty_rows(tensor, numbers.size(0));  // LibTorch has no Meta kernel for it
}

at::Tensor rows_at(const at::Tensor& tensor, const at::Tensor& numbers, const at::Tensor& left_out) {
  if (!left_out.defined()) return rows_at(tensor, numbers);
  if (tensor.size(0) == 0) return empty_rows(tensor, numbers.size(0)).zero_();
  std::vector<int64_t> shape(static_cast<size_t>(tensor.dim()), 1);
  shape[0] = numbers.size(0);
  return rows_at(tensor, numbers).masked_fill_(left_out.view(shape), 0);
}

at::Tensor summed_rows(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& left_out) {
  if (has_row_loops(y) && rows.is_contiguous()) {
    static const Operator<decltype(slots_on_host)> sum("meshtrain::host_expert_slots");
    return sum(y, rows, left_out.defined() ? std::optional(left_out) : std::nullopt);
  }
  at::Tensor out = at::empty({rows.size(0), y.size(1)}, y.options());
  const at::ScalarType dtype = sum_dtype(y);
  for_host_row_chunks(y, rows.size(0), bytes_of_sums(y, y.size(1)), [&](int64_t first, int64_t count) {
    const at::Tensor own = rows.narrow(0, first, count), to = out.narrow(0, first, count);
    const auto slot = [&](int64_t index) {
      const at::Tensor without =
          left_out.defined() ? left_out.narrow(0, first, count).select(1, index).contiguous() : at::Tensor();
      return rows_at(y, own.select(1, index), without).to(dtype);
    };
    at::Tensor sum = slot(0);
    for (int64_t index = 1; index < rows.size(1); ++index) sum.add_(slot(index));
    to.copy_(sum);
  });
  return out;
}

void scale_rows(at::Tensor y, const at::Tensor& factors) {
  if (has_row_loops(y) && factors.scalar_type() == at::kFloat && factors.is_contiguous()) {
    static const Operator<decltype(scale_on_host)> scale("meshtrain::host_scale_expert_rows");
    return scale(y, factors);
  }
  if (y.scalar_type() == factors.scalar_type()) {
    y.mul_(factors.unsqueeze(1));
    return;
  }
  for_host_row_chunks(y, y.size(0), bytes_of_sums(y, y.size(1)), [&](int64_t first, int64_t count) {
    const at::Tensor part = y.narrow(0, first, count);
    part.copy_(part.to(factors.scalar_type()).mul_(factors.narrow(0, first, count).unsqueeze(1)));
  });
}

void add_row_dots(const at::Tensor& sums, const at::Tensor& a, const at::Tensor& b) {
  for_host_row_chunks(sums, a.size(0), bytes_of_sums(sums, a.size(1)), [&](int64_t first, int64_t count) {
    const at::Tensor other = b.size(0) == 1 ? b : b.narrow(0, first, count);
    const at::Tensor products = at::mul(a.narrow(0, first, count).to(sums.scalar_type()), other.to(sums.scalar_type()));
    sums.narrow(0, first, count).add_(products.sum(1));
  });
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&slots_on_host, &slots_on_host>(library,
                                         "host_expert_slots(Tensor y, Tensor rows, Tensor? left_out) -> Tensor");
  define<&scale_on_host, &scale_on_host>(library, "host_scale_expert_rows(Tensor(a!) y, Tensor factors) -> ()");
}

}  // namespace meshtrain
