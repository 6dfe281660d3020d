#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace meshtrain {

/// The input of a layer, and the tensors kept for the layer's backward: the input itself, or others from which the
/// backward recomputes it.
struct LayerInput {
  using Again = std::function<at::Tensor(const std::vector<at::Tensor>& kept)>;

  LayerInput(at::Tensor tensor) : value(tensor), kept({std::move(tensor)}) {}
  /// `compute_again` must return the bits of `tensor`, must not record for autograd, and must not hold a tensor itself.
  LayerInput(at::Tensor tensor, std::vector<at::Tensor> kept_instead, Again compute_again)
      : value(std::move(tensor)), kept(std::move(kept_instead)), again(std::move(compute_again)) {}

  at::Tensor value;
  std::vector<at::Tensor> kept;
  Again again;  ///< empty: `value` is kept
};

}  // namespace meshtrain
