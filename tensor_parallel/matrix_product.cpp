#include "tensor_parallel/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

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
  return a.scalar_type() == at::kFloat && a.device().is_cpu() &&
         a.numel() * b.size(0) >= kSmallestForOneDnn && onednn_linear().has_value();
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!suits_onednn(a, b)) return at::mm(a, b.t());
  const at::AutoDispatchBelowAutograd below;
  return onednn_linear()->call(a, b, std::nullopt, "none", Attributes(), std::nullopt);
}

}  // namespace meshtrain
