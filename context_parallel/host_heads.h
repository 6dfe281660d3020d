#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "context_parallel/host_attention.h"
#include "context_parallel/host_tiles.h"
#include "mesh/device/host_rows.h"

namespace meshtrain::host_tiles {

/// Rows of queries in a tile of the forward, and of keys in one of the backward; columns of either.
inline constexpr int64_t kTileRows = 64, kTileColumns = 512;

/// The heads of a tensor [B, heads, positions, D] with contiguous D.
template <class T>
class Heads {
 public:
  explicit Heads(const at::Tensor& tensor)
      : data_(static_cast<T*>(tensor.data_ptr())),
        batch_(tensor.stride(0)),
        head_(tensor.stride(1)),
        position_(tensor.stride(2)) {}

  Matrix<T> of(int64_t batch, int64_t head) const { return {data_ + batch * batch_ + head * head_, position_}; }

 private:
  T* data_;
  int64_t batch_, head_, position_;
};

/// A matrix [rows, positions] as tiles of kTileColumns positions, one after the other, of `together` elements each.
/// Products read and write it with one stride, however many positions there are: LibTorch compiles code for each stride
/// and keeps it. Rows are further apart than a power of two, as otherwise they share sets of the cache.
template <class T>
class Tiles {
 public:
  Tiles(T* data, int64_t rows, int64_t together) : data_(data), rows_(rows), together_(together) {}

  static constexpr int64_t kStride = kTileColumns + kLanes;

  /// Returns the part of a tile that begins with `position`.
  Matrix<T> from(int64_t position) const {
    const int64_t first = position / kTileColumns * rows_ * kStride + position % kTileColumns;
    return {data_ + first * together_, kStride * together_};
  }

 private:
  T* data_;
  int64_t rows_, together_;
};

/// Calls compute(first, count) for the tiles of `positions`.
template <class Compute>
void for_tiles(int64_t positions, const Compute& compute) {
  for (int64_t first = 0; first < positions; first += kTileColumns) {
    compute(first, std::min(positions - first, kTileColumns));
  }
}

/// Temporary memory: hands out bytes, or counts them when it has none.
class Scratch {
 public:
  explicit Scratch(std::byte* memory = nullptr) : memory_(memory) {}

  template <class T>
  Matrix<T> rows(int64_t count, int64_t columns) {
    T* const data = reinterpret_cast<T*>(memory_ == nullptr ? nullptr : memory_ + bytes_);
    bytes_ += (count * columns * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return {data, columns};
  }
  template <class T>
  Tiles<T> tiles(int64_t count, int64_t positions, int64_t together = 1) {
    const int64_t num_tiles = (positions + kTileColumns - 1) / kTileColumns;
    return {rows<T>(num_tiles * count, Tiles<T>::kStride * together).data, count, together};
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 64;
  std::byte* memory_;
  int64_t bytes_ = 0;
};

/// Calls compute(begin, end, memory) for ranges of `items`, on LibTorch's threads, each with `bytes` of its own memory.
/// Where `like` is of the Meta device nothing is computed, and the memory is counted.
template <class Compute>
void for_ranges(const at::Tensor& like, int64_t items, int64_t bytes, const Compute& compute) {
  const int64_t threads = std::min<int64_t>(items, at::get_num_threads());
  const at::Tensor scratch = at::empty({threads, bytes}, like.options().dtype(at::kByte));
  if (like.is_meta()) return;
  at::parallel_for(0, items, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    compute(begin, end, static_cast<std::byte*>(scratch.data_ptr()) + at::get_thread_num() * bytes);
  });
}

/// Calls compute(set, element) with the instructions and the type for elements of `dtype`: halves have AVX-512's.
template <class Compute>
void for_elements(at::ScalarType dtype, const Compute& compute) {
#if defined(__x86_64__)
  TORCH_CHECK(has_attention_loops(dtype), "host_attention: this processor has no loops over ", dtype);
  if (dtype == at::kBFloat16) return compute(Avx512(), c10::BFloat16());
  with_lanes(dtype, [&](auto set) { compute(set, float()); });
#endif
}

/// Right operands of products of halves have two neighbouring rows together: [rows / 2, columns, 2].
template <class T>
inline constexpr int64_t kRowsTogether = std::is_same_v<std::remove_const_t<T>, float> ? 1 : 2;

/// Returns a right operand from `row`, a multiple of 2, on.
template <class T>
Matrix<const T> from_row(Matrix<T> right, int64_t row) {
  return {right.row(row / kRowsTogether<T>), right.stride};
}

/// Returns the number of terms of a product over `count` positions. Halves are padded with zeros to full registers.
template <class T>
int64_t terms(int64_t count) {
  return std::is_same_v<T, float> ? count : padded(count);
}

/// Returns `rows`, or, when `count` is not a multiple of kLanes, a copy in `memory` with rows of zeros up to
/// padded(count). Products take rows in full registers.
template <class T>
Matrix<const T> full_rows(Matrix<const T> rows, int64_t count, int64_t features, Matrix<T> memory) {
  if (count % kLanes == 0) return rows;
  for (int64_t row = 0; row < count; ++row) std::copy_n(rows.row(row), features, memory.row(row));
  for (int64_t row = count; row < padded(count); ++row) std::fill_n(memory.row(row), features, T(0.0F));
  return memory;
}

/// Computes c = a b, or adds it, for a [m, k], a right operand b [k, n] and c [m, n]. LibTorch compiles and keeps code
/// for each shape. Terms of floats beyond full registers therefore get a call of their own, and few shapes serve all
/// lengths.
template <class T>
void multiply(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<float> c, bool add) {
  const auto add_terms = [&](int64_t first, int64_t count, bool add_to) {
    at::native::cpublas::brgemm(m, n, count, a.stride, b.stride / kRowsTogether<T>, c.stride, add_to, a.data + first,
                                from_row(b, first).data, c.data, /*is_vnni=*/kRowsTogether<T> == 2);
  };
  const int64_t full = k / kLanes * kLanes;
  if (full > 0) add_terms(0, full, add);
  if (full < k) add_terms(full, k - full, add || full > 0);
}

/// While it exists a thread computes products of T; afterwards the processor's tile registers are free for others.
template <class T>
class ProductGuard {
 public:
  ProductGuard() = default;
  ~ProductGuard() { at::native::cpublas::brgemm_release(/*is_vnni=*/kRowsTogether<T> == 2); }
  ProductGuard(const ProductGuard&) = delete;
  ProductGuard& operator=(const ProductGuard&) = delete;
};

}  // namespace meshtrain::host_tiles
