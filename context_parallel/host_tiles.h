#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <type_traits>

#include "mesh/device/host_lanes.h"

/// Loops over tiles of attention scores with the instructions of Set (host_lanes.h), 16 floats at a time. Matrices are
/// rows of elements; `stride` is the number of elements from a row to the next. T is float, or c10::BFloat16 with
/// AVX-512, whose products have two neighbouring rows of the right operand together.
namespace meshtrain::host_tiles {

/// A matrix in memory.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;

  T* row(int64_t index) const { return data + index * stride; }
  operator Matrix<const T>() const requires(!std::is_const_v<T>) { return {data, stride}; }
};

/// Writes the transpose of `in` [rows, columns] to `out` [columns, padded(rows)], with zeros beyond `rows`. The columns
/// of `in` must be readable up to padded(columns).
template <class Set>
MESHTRAIN_LANES void transpose(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<float> out);

/// The same for bfloat16, two neighbouring columns together: out [columns / 2, padded(rows), 2] as a product's right
/// operand has them. `columns` is even.
template <class Set>
MESHTRAIN_LANES void transpose(Matrix<const c10::BFloat16> in, int64_t rows, int64_t columns,
                               Matrix<c10::BFloat16> out);

/// Takes `pairs` [columns / 2, padded(rows), 2] of transpose() apart into `out` [columns, padded(rows)].
MESHTRAIN_LANES void take_apart(Matrix<const c10::BFloat16> pairs, int64_t rows, int64_t columns,
                                Matrix<c10::BFloat16> out);

/// Writes `in` [rows, columns] as out [padded(rows) / 2, columns, 2], two neighbouring rows together, with zeros beyond
/// `rows`. `columns` is a multiple of kLanes.
MESHTRAIN_LANES void interleave(Matrix<const c10::BFloat16> in, int64_t rows, int64_t columns,
                                Matrix<c10::BFloat16> out);

/// Writes the transpose of `in` [columns, rows], readable up to padded(rows), to `out` [rows, columns]; `columns` is a
/// multiple of kLanes.
template <class Set, class T>
MESHTRAIN_LANES void transpose_back(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<T> out);

/// Rounds `in` [rows, columns] into `out`; `columns` is a multiple of kLanes.
template <class Set, class T>
MESHTRAIN_LANES void round_rows(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<T> out);

/// The softmax of rows whose scores come in several tiles.
struct RunningSoftmax {
  float* largest;  ///< [rows], of the scores so far; -inf before the first
  float* sum;      ///< [rows], of the exponentials so far
};

/// Replaces `scores` [rows, columns] by exponentials 2^(factor (score - largest)), in `out`, which may be the same
/// memory for floats, and updates the largest scores and sums. Row r counts min(columns, first + r step) columns; the
/// others become zeros, up to padded(columns). Multiplies the first `features` elements of each row of `sums`, what the
/// exponentials so far have been multiplied with, by the change of scale.
template <class Set, class T>
MESHTRAIN_LANES void exponentials(Matrix<const float> scores, int64_t rows, int64_t columns, int64_t first,
                                  int64_t step, float factor, RunningSoftmax running, Matrix<T> out, Matrix<float> sums,
                                  int64_t features);

/// Writes sums [rows, features] / the sum of exponentials to `out`, and the log-sum-exp scale largest + ln(sum) to
/// `lse`, whose elements are `lse_stride` apart.
template <class Set, class T>
MESHTRAIN_LANES void finish(RunningSoftmax running, Matrix<const float> sums, int64_t rows, int64_t features,
                            float scale, Matrix<T> out, float* lse, int64_t lse_stride);

/// Writes the dot products of the rows of `a` and `b` [rows, columns].
template <class Set, class T>
MESHTRAIN_LANES void row_products(Matrix<const T> a, Matrix<const T> b, int64_t rows, int64_t columns, float* out);

/// The inputs of the gradients of a tile of scores. Keys are its rows and queries its columns.
struct TileGradients {
  Matrix<float> scores;      ///< [keys, queries], products of keys and queries
  Matrix<float> products;    ///< [keys, queries], products of values and output gradients
  const float* lse;          ///< [queries], in units of log 2; +inf where no query is
  const float* row_product;  ///< [queries], products of outputs and output gradients
  float scale;               ///< of the scores
};

/// Writes exponentials P = 2^(scale log2(e) score - lse) to `p` and dS = scale P (product - row_product) to `ds`, for
/// `keys` rows and padded(queries) columns. Row r counts the columns from first + r on, the others are zeros; first <=
/// -keys: all. For floats `p` and `ds` may be `scores` and `products`. For bfloat16 `pairs` [padded(keys) / 2,
/// padded(queries), 2] gets dS with two neighbouring rows together, zeros beyond `keys`.
template <class Set>
MESHTRAIN_LANES void tile_gradients(const TileGradients& tile, int64_t keys, int64_t queries, int64_t first,
                                    Matrix<float> p, Matrix<float> ds);
MESHTRAIN_LANES void tile_gradients(const TileGradients& tile, int64_t keys, int64_t queries, int64_t first,
                                    Matrix<c10::BFloat16> p, Matrix<c10::BFloat16> ds, Matrix<c10::BFloat16> pairs);

}  // namespace meshtrain::host_tiles
