#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace meshtrain {

/// What a layer is applied to, and what is kept of it until the layer's backward: the tensor itself, or others, from
/// which it is computed again there.
struct LayerInput {
  using Again = std::function<at::Tensor(const std::vector<at::Tensor>& kept)>;

  LayerInput(at::Tensor tensor) : value(tensor), kept({std::move(tensor)}) {}
  /// `compute_again` gives the bits of `tensor`, does not record for autograd, and holds no tensor itself.
  LayerInput(at::Tensor tensor, std::vector<at::Tensor> kept_instead, Again compute_again)
      : value(std::move(tensor)), kept(std::move(kept_instead)), again(std::move(compute_again)) {}

  at::Tensor value;
  std::vector<at::Tensor> kept;
  Again again;  ///< empty: `value` is what is kept
};

}  // namespace meshtrain
