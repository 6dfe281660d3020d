#include "context_parallel/host_tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#if defined(__x86_64__)

namespace meshtrain::host_tiles {
namespace {

using c10::BFloat16;

constexpr float kLog2E = std::numbers::log2e_v<float>;

/// Transposes words; `in` has zeros beyond `rows`.
MESHTRAIN_LANES void transpose_words(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
                                     int64_t out_stride) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t count = std::min(rows - row, kLanes);
    for (int64_t column = 0; column < columns; column += kLanes) {
      Lanes block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = i < count ? load(in + (row + i) * in_stride + column) : broadcast(0);
      }
      transpose_block(block);
      const int64_t written = std::min(columns - column, kLanes);
      for (int64_t i = 0; i < written; ++i) store(out + (column + i) * out_stride + row, block[i]);
    }
  }
}

/// Returns how many of `columns` row `row` counts.
MESHTRAIN_LANES_INLINE int64_t counted(int64_t columns, int64_t first, int64_t step, int64_t row) {
  return std::min(columns, first + row * step);
}

/// Sixteen elements of a row of exponentials and of gradients.
struct Gradients {
  Lanes p, ds;
};

MESHTRAIN_LANES_INLINE Gradients gradients_of(const TileGradients& tile, int64_t row, int64_t i, int64_t uncounted) {
  const Lanes factor = broadcast(tile.scale * kLog2E), scale = broadcast(tile.scale);
  const Lanes exponent = fmsub(load(tile.scores.row(row) + i), factor, load(tile.lse + i));
  const Lanes p = chosen(lanes_below(uncounted - i), broadcast(0), exp2_of(exponent));
  const Lanes difference = load(tile.products.row(row) + i) - load(tile.row_product + i);
  return {p, p * difference * scale};
}

}  // namespace

template <class Set>
MESHTRAIN_LANES void transpose(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<float> out) {
  transpose_words(in.data, in.stride, rows, columns, out.data, out.stride);
}

template <class Set>
MESHTRAIN_LANES void transpose(Matrix<const BFloat16> in, int64_t rows, int64_t columns, Matrix<BFloat16> out) {
  transpose_words(reinterpret_cast<const float*>(in.data), in.stride / 2, rows, columns / 2,
                  reinterpret_cast<float*>(out.data), out.stride / 2);
}

template <class Set, class T>
MESHTRAIN_LANES void round_rows(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<T> out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; i += kLanes) store(out.row(row) + i, load(in.row(row) + i));
  }
}

template <class Set>
MESHTRAIN_LANES void tile_gradients(const TileGradients& tile, int64_t keys, int64_t queries, int64_t first,
                                    Matrix<float> p, Matrix<float> ds) {
  for (int64_t row = 0; row < keys; ++row) {
    for (int64_t i = 0; i < padded(queries); i += kLanes) {
      const Gradients lanes = gradients_of(tile, row, i, first + row);
      store(p.row(row) + i, lanes.p);
      store(ds.row(row) + i, lanes.ds);
    }
  }
}

template <class Set, class T>
MESHTRAIN_LANES void transpose_back(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<T> out) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t written = std::min(rows - row, kLanes);
    for (int64_t column = 0; column < columns; column += kLanes) {
      Lanes block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) block[i] = load(in.row(column + i) + row);
      transpose_block(block);
      for (int64_t i = 0; i < written; ++i) store(out.row(row + i) + column, block[i]);
    }
  }
}

template <class Set, class T>
MESHTRAIN_LANES void exponentials(Matrix<const float> scores, int64_t rows, int64_t columns, int64_t first,
                                  int64_t step, float factor, RunningSoftmax running, Matrix<T> out, Matrix<float> sums,
                                  int64_t features) {
  const Lanes lowest = broadcast(-std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = counted(columns, first, step, row);
    const float* const from = scores.row(row);
    Lanes largest = lowest;
    for (int64_t i = 0; i < count; i += kLanes) {
      const Mask lanes = lanes_below(count - i);
      largest = larger_of(largest, chosen(lanes, load_some(from + i, lanes), lowest));
    }
    const float before = running.largest[row], now = std::max(before, largest_of(largest));
    const Lanes factors = broadcast(factor), shift = broadcast(now * factor);
    Lanes sum = broadcast(0);
    T* const to = out.row(row);
    for (int64_t i = 0; i < padded(columns); i += kLanes) {
      const Mask lanes = lanes_below(count - i);
      const Lanes exponent = fmsub(load_some(from + i, lanes), factors, shift);
      const Lanes power = chosen(lanes, exp2_of(exponent), broadcast(0));
      sum = sum + power;
      store(to + i, power);
    }
    const float rescale = std::exp2((before - now) * factor);  // 0 before the first tile
    running.largest[row] = now;
    running.sum[row] = running.sum[row] * rescale + sum_of(sum);
    if (rescale == 1 || before == -std::numeric_limits<float>::infinity()) continue;
    const Lanes rescales = broadcast(rescale);
    float* const scaled = sums.row(row);
    for (int64_t i = 0; i < features; i += kLanes) store(scaled + i, load(scaled + i) * rescales);
  }
}

template <class Set, class T>
MESHTRAIN_LANES void finish(RunningSoftmax running, Matrix<const float> sums, int64_t rows, int64_t features,
                            float scale, Matrix<T> out, float* lse, int64_t lse_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const Lanes divisor = broadcast(running.sum[row]);
    for (int64_t i = 0; i < features; i += kLanes) {
      store(out.row(row) + i, load(sums.row(row) + i) / divisor);
    }
    lse[row * lse_stride] = scale * running.largest[row] + std::log(running.sum[row]);
  }
}

template <class Set, class T>
MESHTRAIN_LANES void row_products(Matrix<const T> a, Matrix<const T> b, int64_t rows, int64_t columns, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    Lanes sum = broadcast(0);
    for (int64_t i = 0; i < columns; i += kLanes) sum = fmadd(load(a.row(row) + i), load(b.row(row) + i), sum);
    out[row] = sum_of(sum);
  }
}

// The instances.
#define MESHTRAIN_TILES(T)                                                                                            \
  template void transpose<ThisSet>(Matrix<const T>, int64_t, int64_t, Matrix<T>);                                     \
  template void round_rows<ThisSet>(Matrix<const float>, int64_t, int64_t, Matrix<T>);                                \
  template void transpose_back<ThisSet>(Matrix<const float>, int64_t, int64_t, Matrix<T>);                            \
  template void exponentials<ThisSet>(Matrix<const float>, int64_t, int64_t, int64_t, int64_t, float, RunningSoftmax, \
                                      Matrix<T>, Matrix<float>, int64_t);                                             \
  template void finish<ThisSet>(RunningSoftmax, Matrix<const float>, int64_t, int64_t, float, Matrix<T>, float*,      \
                                int64_t);                                                                             \
  template void row_products<ThisSet>(Matrix<const T>, Matrix<const T>, int64_t, int64_t, float*);
MESHTRAIN_TILES(float)
template void tile_gradients<ThisSet>(const TileGradients&, int64_t, int64_t, int64_t, Matrix<float>, Matrix<float>);

#if defined(MESHTRAIN_LOOPS_AVX512)

MESHTRAIN_TILES(BFloat16)

namespace {

/// Returns pairs: 16 elements of `low`, each followed by that of `high`.
MESHTRAIN_LANES_INLINE __m512i paired(__m256i low, __m256i high) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

}  // namespace

MESHTRAIN_LANES void take_apart(Matrix<const BFloat16> pairs, int64_t rows, int64_t columns, Matrix<BFloat16> out) {
  for (int64_t column = 0; column < columns; column += 2) {
    for (int64_t i = 0; i < padded(rows); i += kLanes) {
      const __m512i words = _mm512_loadu_si512(pairs.row(column / 2) + 2 * i);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.row(column) + i), _mm512_cvtepi32_epi16(words));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.row(column + 1) + i),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
    }
  }
}

MESHTRAIN_LANES void interleave(Matrix<const BFloat16> in, int64_t rows, int64_t columns, Matrix<BFloat16> out) {
  for (int64_t row = 0; row < padded(rows); row += 2) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      const auto half = [&](int64_t of) MESHTRAIN_LANES {
        return of < rows ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in.row(of) + i))
                         : _mm256_setzero_si256();
      };
      _mm512_storeu_si512(out.row(row / 2) + 2 * i, paired(half(row), half(row + 1)));
    }
  }
}

MESHTRAIN_LANES void tile_gradients(const TileGradients& tile, int64_t keys, int64_t queries, int64_t first,
                                    Matrix<BFloat16> p, Matrix<BFloat16> ds, Matrix<BFloat16> pairs) {
  for (int64_t row = 0; row < padded(keys); row += 2) {
    for (int64_t i = 0; i < padded(queries); i += kLanes) {
      __m256i halves[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int64_t k = 0; k < 2 && row + k < keys; ++k) {
        const Gradients lanes = gradients_of(tile, row + k, i, first + row + k);
        halves[k] = rounded(lanes.ds);
        store(p.row(row + k) + i, lanes.p);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(ds.row(row + k) + i), halves[k]);
      }
      _mm512_storeu_si512(pairs.row(row / 2) + 2 * i, paired(halves[0], halves[1]));
    }
  }
}

#endif

}  // namespace meshtrain::host_tiles

#endif
