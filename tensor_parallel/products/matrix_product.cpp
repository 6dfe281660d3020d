#include "tensor_parallel/products/matrix_product.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/host_scratch.h"
#include "mesh/device/meta_device.h"
#include "mesh/device/row_chunks.h"
#include "tensor_parallel/products/few_rows.h"
#include "tensor_parallel/products/product_library.h"

namespace meshtrain {
namespace {

/// Number of multiplications below which the set-up of a oneDNN primitive costs more than it saves.
constexpr int64_t kSmallestForOneDnn = int64_t{1} << 18;

using Attributes = c10::List<std::optional<at::Scalar>>;
using OneDnnLinear = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                std::string_view attribute, Attributes scalars,
                                std::optional<std::string_view> algorithm);

/// Returns oneDNN's operator for x weight^T; nullopt when LibTorch is built without it.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& onednn_linear() {
  static const auto handle = [] {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    return found ? std::optional(found->typed<OneDnnLinear>()) : std::nullopt;
  }();
  return handle;
}

bool suits_onednn(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat && is_host(a.device()) && a.numel() * b.size(0) >= kSmallestForOneDnn &&
         onednn_linear().has_value();
}

/// Returns true when the loops of few_rows.h compute a b^T: its time is that of reading b, whose rows lie side by side.
bool has_few_rows(const at::Tensor& a, const at::Tensor& b) {
  const auto has_full_rows = [](const at::Tensor& tensor) { return tensor.stride(1) == 1; };
  return a.size(0) > 0 && a.size(0) <= few_rows::kMost && has_lanes(a.scalar_type()) && is_host(a.device()) &&
         a.scalar_type() == b.scalar_type() && has_full_rows(a) && has_full_rows(b);
}

template <class Set, class T>
at::Tensor product_of_few_rows(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options());
  const few_rows::Rows<const T> rows{a.const_data_ptr<T>(), a.stride(0)};
  const T* const weights = b.const_data_ptr<T>();
  T* const to = out.data_ptr<T>();
  for_row_ranges(b.size(0), b.size(1), [&](int64_t first, int64_t count) {
    few_rows::multiply<Set>(rows, a.size(0), {weights + first * b.stride(0), b.stride(0)}, count, b.size(1),
                            few_rows::Rows<T>{to + first, out.stride(0)});
  });
  return out;
}

/// Returns true when oneDNN writes a product, or adds it, to `out` [m, n] of `terms` terms itself.
bool onednn_writes(const at::Tensor& out, int64_t terms) {
  return out.scalar_type() == at::kFloat && is_host(out.device()) && out.is_contiguous() &&
         out.numel() * terms >= kSmallestForOneDnn && onednn_linear().has_value();
}

/// Returns `matrix` as oneDNN reads it without a copy of its own: the elements or those of its transpose side by side.
at::Tensor dense(const at::Tensor& matrix) {
  return matrix.is_contiguous() || matrix.t().is_contiguous() ? matrix : matrix.contiguous();
}

/// Computes out = beta out + a b for a [m, k] and b [k, n], of the dtype of `out`, in place; beta = 0 reads nothing.
void multiply_in_place(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, int beta) {
  const bool by_onednn = onednn_writes(out, a.size(1)) && onednn_multiplies_in_place();
  const at::Tensor left = by_onednn ? dense(a) : a, right = by_onednn ? dense(b) : b;
  if (by_onednn && !out.is_meta()) {
    multiply_by_onednn(out, left, right, static_cast<float>(beta));
  } else {
    at::Tensor(out).addmm_(left, right, beta);
  }
}

/// Returns a^T b by multiply_in_place(), whose memory is measured so.
template <int kBeta>
at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor out = at::zeros({a.size(1), b.size(1)}, a.options());
  multiply_in_place(out, a.t(), b, kBeta);
  return out;
}

/// Computes a b^T of halves in fp32 and rounds once: converts `a` completely, `b` and the result in pieces.
void product_in_fp32(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.to(at::kFloat);
  const int64_t row_bytes = std::max(a.size(0), a.size(1)) * static_cast<int64_t>(wide.element_size());
  for_row_chunks(b, b.size(0), row_bytes, [&](int64_t first, int64_t count) {
    out.narrow(1, first, count).copy_(product(wide, b.narrow(0, first, count).to(at::kFloat)));
  });
}

/// Computes the product `name` of two tensors and returns it.
using HostProduct = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b);

/// Returns what `product` allocates for a moment for tensors like `a` and `b` (host_scratch()): measured on zeros of at
/// most kMeasured rows and columns, beyond which oneDNN takes hardly more.
at::Tensor scratch_of(const std::string& name, const at::Tensor& a, const at::Tensor& b, HostProduct product) {
  static constexpr int64_t kMeasured = 1024;
  if (!has_host_scratch(a)) return {};
  const at::TensorOptions options(a.scalar_type());
  const auto sizes_of = [](const at::Tensor& tensor) {
    return std::array{std::min(tensor.size(0), kMeasured), std::min(tensor.size(1), kMeasured)};
  };
  const auto text_of = [&](const at::Tensor& tensor) {
    const auto [rows, columns] = sizes_of(tensor);
    return " " + std::to_string(rows) + (tensor.is_contiguous() ? "x" : "t") + std::to_string(columns);
  };
  return host_scratch(name + " " + c10::toString(a.scalar_type()) + text_of(a) + text_of(b), [&]() -> HostComputation {
    const auto made = [&](const at::Tensor& tensor) {
      const auto [rows, columns] = sizes_of(tensor);
      return tensor.is_contiguous() ? at::zeros({rows, columns}, options) : at::zeros({columns, rows}, options).t();
    };
    return [product, left = made(a), right = made(b)] { return std::vector<at::Tensor>{product(left, right)}; };
  });
}

/// Computes the shape of a b^T.
at::Tensor product_on_meta(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor rows = suits_onednn(a, b) ? a.contiguous() : a;  // oneDNN's operator copies other ones
  const at::Tensor scratch = scratch_of("product", rows, b, product);
  return at::mm(rows, b.t());
}

// LibTorch has no Meta kernel for halves added to fp32, which allocates nothing.
at::Tensor& meta_addmm_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::ScalarType, const at::Scalar&,
                           const at::Scalar&, at::Tensor& out) {
  return out;
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("addmm.dtype_out", meta_addmm_out);
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (has_few_rows(a, b)) {
    if (a.is_meta()) return at::mm(a, b.t());
    return with_lanes(a.scalar_type(), [&]<class Set>(Set) {
      return a.scalar_type() == at::kFloat ? product_of_few_rows<Set, float>(a, b)
                                           : product_of_few_rows<Set, c10::BFloat16>(a, b);
    });
  }
  if (a.is_meta() && !multiplied_in_fp32(a)) return product_on_meta(a, b);
  if (suits_onednn(a, b)) {
    const at::AutoDispatchBelowAutograd below;
    return onednn_linear()->call(a, b, std::nullopt, "none", Attributes(), std::nullopt);
  }
  if (!multiplied_in_fp32(a)) return at::mm(a, b.t());
  at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options());
  product_in_fp32(out, a, b);
  return out;
}

void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (multiplied_in_fp32(a)) return product_in_fp32(out, a, b);
  const bool by_onednn = suits_onednn(a, b) && onednn_multiplies_in_place();
  if (by_onednn && !onednn_writes(out, a.size(1))) {
    out.copy_(product(a, b));
    return;
  }
  const at::Tensor left = by_onednn ? dense(a) : a, right = by_onednn ? dense(b) : b;
  const at::Tensor scratch = scratch_of("into", left, right, [](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor result = at::empty({x.size(0), y.size(0)}, x.options());
    product_into(result, x, y);
    return result;
  });
  if (by_onednn && !out.is_meta()) {
    multiply_by_onednn(out, left, right.t(), /*beta=*/0);
  } else {
    at::mm_out(out, left, right.t());
  }
}

void add_product(at::Tensor into, const at::Tensor& a, const at::Tensor& b, bool unwritten) {
  const int beta = unwritten ? 0 : 1;  // 0: LibTorch and BLAS do not read the old values
  const at::ScalarType dtype = multiplied_in_fp32(b) ? at::kFloat : b.scalar_type();
  const bool in_place = into.scalar_type() == dtype;
  if (in_place && b.scalar_type() == dtype) {
    const at::Tensor scratch =
        unwritten ? scratch_of("written", a, b, multiplied<0>) : scratch_of("sum", a, b, multiplied<1>);
    multiply_in_place(into, a.t(), b, beta);
    return;
  }
  if (is_gpu(into.device()) && into.scalar_type() == at::kFloat && c10::isReducedFloatingType(b.scalar_type())) {
    at::addmm_out(into, into, a.t(), b, at::kFloat, beta);  // halves into fp32 in one product, without temporaries
    return;
  }
  const at::Tensor rows = b.to(dtype);
  const int64_t row_bytes = std::max(a.size(0), b.size(1)) * static_cast<int64_t>(rows.element_size());
  for_row_chunks(into, into.size(0), row_bytes, [&](int64_t first, int64_t count) {
    const at::Tensor part = into.narrow(0, first, count), columns = a.narrow(1, first, count).to(dtype);
    if (in_place) {
      multiply_in_place(part, columns.t(), rows, beta);
    } else if (unwritten) {
      part.copy_(product(columns.t(), rows.t()));
    } else {
      part.add_(product(columns.t(), rows.t()));
    }
  });
}

}  // namespace meshtrain
