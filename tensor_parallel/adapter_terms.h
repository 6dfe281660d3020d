#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor_parallel/operators/dropout.h"

namespace meshtrain {

/// The terms scale_i * drop(x) A_i^T B_i^T that adapters add to outputs of a layer, and their gradients. The outputs of
/// the layer are columns of y [T, F], side by side. Nothing here is differentiable or communicates: on several ranks of
/// tp each result is this rank's part.
struct AdapterTerms {
  std::vector<at::Tensor> a;           ///< [r_i, in]; one product when they are adjacent in memory
  std::vector<at::Tensor> b;           ///< [F_i, r_i]
  std::vector<double> scales;          ///< one for each adapter
  std::vector<int64_t> first_columns;  ///< of each adapter's output in y
  Dropout dropout;                     ///< of x
  at::Tensor tokens;                   ///< int64 [T]: see drop(). Undefined: no dropout
  int64_t first_feature = 0;           ///< the index of column 0 of x among the features of all ranks

  bool empty() const { return a.empty(); }

  /// Returns drop(x), or x without dropout.
  at::Tensor dropped(const at::Tensor& x) const;

  /// Adds the terms to y for x [T, in]. Returns h = drop(x) A^T, [T, sum of r_i].
  at::Tensor add_to(at::Tensor& y, const at::Tensor& x) const;
  /// Returns the gradient of h, [T, sum of r_i], for dy [T, F].
  at::Tensor hidden_gradient(const at::Tensor& dy) const;
  /// Adds to dx [T, in] the gradient of x, from that of h.
  void add_input_gradient(at::Tensor& dx, const at::Tensor& hidden_gradient) const;
};

}  // namespace meshtrain
