#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

namespace meshtrain {

/// Returns an uninitialised tensor with `rows` rows of the shape, dtype and device of those of `like`.
inline at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.at(0) = rows;
  return at::empty(shape, like.options());
}

}  // namespace meshtrain
