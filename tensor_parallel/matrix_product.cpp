#include "tensor_parallel/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "tensor_parallel/row_chunks.h"

namespace meshtrain {
namespace {

/// Below this number of multiplications setting up a primitive costs more than it saves.
constexpr int64_t kSmallestForOneDnn = int64_t{1} << 18;

using Attributes = c10::List<std::optional<at::Scalar>>;
using OneDnnLinear = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                std::string_view attribute, Attributes scalars,
                                std::optional<std::string_view> algorithm);

/// x weight^T through oneDNN; nothing where LibTorch is built without it.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& onednn_linear() {
  static const auto handle = [] {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    return found ? std::optional(found->typed<OneDnnLinear>()) : std::nullopt;
  }();
  return handle;
}

bool suits_onednn(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat && a.device().is_cpu() && a.numel() * b.size(0) >= kSmallestForOneDnn &&
         onednn_linear().has_value();
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!suits_onednn(a, b)) return at::mm(a, b.t());
  const at::AutoDispatchBelowAutograd below;
  return onednn_linear()->call(a, b, std::nullopt, "none", Attributes(), std::nullopt);
}

// oneDNN only returns its product, and has `a` copied to lie as it reads it.
void add_product(at::Tensor into, const at::Tensor& a, const at::Tensor& b) {
  if (into.scalar_type() == b.scalar_type() && !(b.device().is_cpu() && b.scalar_type() == at::kFloat)) {
    into.addmm_(a.t(), b);
    return;
  }
  const int64_t row_bytes = std::max(a.size(0), b.size(1)) * static_cast<int64_t>(b.element_size());
  for_row_chunks(into.size(0), row_bytes, [&](int64_t first, int64_t count) {
    into.narrow(0, first, count).add_(product(a.narrow(1, first, count).t(), b.t()));
  });
}

}  // namespace meshtrain
