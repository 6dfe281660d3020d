#include "context_parallel/host_tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#if defined(__x86_64__)

namespace meshtrain::host_tiles {
namespace {

using c10::BFloat16;

constexpr float kLog2E = std::numbers::log2e_v<float>;

/// Returns pairs: 16 elements of `low`, each followed by that of `high`.
MESHTRAIN_LANES_INLINE __m512i paired(__m256i low, __m256i high) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

struct Block {
  __m512& operator[](int64_t row) { return rows[row]; }
  __m512 rows[kLanes];
};

/// Transposes a block of 16 x 16 words in registers: 4 x 4 words inside of quarters first, then the quarters.
MESHTRAIN_LANES_INLINE void transpose_block(Block& rows) {
  Block quads;
  for (int i = 0; i < 16; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(rows[i], rows[i + 1]), b = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]), d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    quads[i] = _mm512_shuffle_ps(a, c, 0x44);
    quads[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
    quads[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    quads[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0xDD);
    rows[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    rows[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
    rows[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

/// Transposes words; `in` has zeros beyond `rows`.
MESHTRAIN_LANES void transpose_words(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
                                     int64_t out_stride) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t count = std::min(rows - row, kLanes);
    for (int64_t column = 0; column < columns; column += kLanes) {
      Block block;
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = i < count ? _mm512_loadu_ps(in + (row + i) * in_stride + column) : _mm512_setzero_ps();
      }
      transpose_block(block);
      const int64_t written = std::min(columns - column, kLanes);
      for (int64_t i = 0; i < written; ++i) _mm512_storeu_ps(out + (column + i) * out_stride + row, block[i]);
    }
  }
}

/// Returns how many of `columns` row `row` counts.
MESHTRAIN_LANES_INLINE int64_t counted(int64_t columns, int64_t first, int64_t step, int64_t row) {
  return std::min(columns, first + row * step);
}

/// Sixteen elements of a row of exponentials and gradients.
struct Lanes {
  __m512 p, ds;
};

MESHTRAIN_LANES_INLINE Lanes lanes_of(const TileGradients& tile, int64_t row, int64_t i, int64_t uncounted) {
  const __m512 factor = _mm512_set1_ps(tile.scale * kLog2E), scale = _mm512_set1_ps(tile.scale);
  const __m512 exponent = _mm512_fmsub_ps(load(tile.scores.row(row) + i), factor, load(tile.lse + i));
  const __m512 p = _mm512_maskz_mov_ps(_knot_mask16(lanes_below(uncounted - i)), exp2_of(exponent));
  const __m512 difference = _mm512_sub_ps(load(tile.products.row(row) + i), load(tile.row_product + i));
  return {p, _mm512_mul_ps(_mm512_mul_ps(p, difference), scale)};
}

}  // namespace

MESHTRAIN_LANES void transpose(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<float> out) {
  transpose_words(in.data, in.stride, rows, columns, out.data, out.stride);
}

MESHTRAIN_LANES void transpose(Matrix<const BFloat16> in, int64_t rows, int64_t columns, Matrix<BFloat16> out) {
  transpose_words(reinterpret_cast<const float*>(in.data), in.stride / 2, rows, columns / 2,
                  reinterpret_cast<float*>(out.data), out.stride / 2);
}

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

template <class T>
MESHTRAIN_LANES void round_rows(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<T> out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; i += kLanes) store(out.row(row) + i, load(in.row(row) + i));
  }
}

MESHTRAIN_LANES void tile_gradients(const TileGradients& tile, int64_t keys, int64_t queries, int64_t first,
                                    Matrix<float> p, Matrix<float> ds) {
  for (int64_t row = 0; row < keys; ++row) {
    for (int64_t i = 0; i < padded(queries); i += kLanes) {
      const Lanes lanes = lanes_of(tile, row, i, first + row);
      store(p.row(row) + i, lanes.p);
      store(ds.row(row) + i, lanes.ds);
    }
  }
}

MESHTRAIN_LANES void tile_gradients(const TileGradients& tile, int64_t keys, int64_t queries, int64_t first,
                                    Matrix<BFloat16> p, Matrix<BFloat16> ds, Matrix<BFloat16> pairs) {
  for (int64_t row = 0; row < padded(keys); row += 2) {
    for (int64_t i = 0; i < padded(queries); i += kLanes) {
      __m256i halves[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int64_t k = 0; k < 2 && row + k < keys; ++k) {
        const Lanes lanes = lanes_of(tile, row + k, i, first + row + k);
        halves[k] = rounded(lanes.ds);
        store(p.row(row + k) + i, lanes.p);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(ds.row(row + k) + i), halves[k]);
      }
      _mm512_storeu_si512(pairs.row(row / 2) + 2 * i, paired(halves[0], halves[1]));
    }
  }
}

template <class T>
MESHTRAIN_LANES void transpose_back(Matrix<const float> in, int64_t rows, int64_t columns, Matrix<T> out) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t written = std::min(rows - row, kLanes);
    for (int64_t column = 0; column < columns; column += kLanes) {
      Block block;
      for (int64_t i = 0; i < kLanes; ++i) block[i] = _mm512_loadu_ps(in.row(column + i) + row);
      transpose_block(block);
      for (int64_t i = 0; i < written; ++i) store(out.row(row + i) + column, block[i]);
    }
  }
}

template <class T>
MESHTRAIN_LANES void exponentials(Matrix<const float> scores, int64_t rows, int64_t columns, int64_t first,
                                  int64_t step, float factor, RunningSoftmax running, Matrix<T> out, Matrix<float> sums,
                                  int64_t features) {
  const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = counted(columns, first, step, row);
    const float* const from = scores.row(row);
    __m512 largest = lowest;
    for (int64_t i = 0; i < count; i += kLanes) {
      largest = _mm512_max_ps(largest, _mm512_mask_loadu_ps(lowest, lanes_below(count - i), from + i));
    }
    const float before = running.largest[row], now = std::max(before, _mm512_reduce_max_ps(largest));
    const __m512 factors = _mm512_set1_ps(factor), shift = _mm512_set1_ps(now * factor);
    __m512 sum = _mm512_setzero_ps();
    T* const to = out.row(row);
    for (int64_t i = 0; i < padded(columns); i += kLanes) {
      const __mmask16 lanes = lanes_below(count - i);
      const __m512 exponent = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(lanes, from + i), factors, shift);
      const __m512 power = _mm512_maskz_mov_ps(lanes, exp2_of(exponent));
      sum = _mm512_add_ps(sum, power);
      store(to + i, power);
    }
    const float rescale = std::exp2((before - now) * factor);  // 0 before the first tile
    running.largest[row] = now;
    running.sum[row] = running.sum[row] * rescale + _mm512_reduce_add_ps(sum);
    if (rescale == 1 || before == -std::numeric_limits<float>::infinity()) continue;
    const __m512 rescales = _mm512_set1_ps(rescale);
    float* const scaled = sums.row(row);
    for (int64_t i = 0; i < features; i += kLanes) store(scaled + i, _mm512_mul_ps(load(scaled + i), rescales));
  }
}

template <class T>
MESHTRAIN_LANES void finish(RunningSoftmax running, Matrix<const float> sums, int64_t rows, int64_t features,
                            float scale, Matrix<T> out, float* lse, int64_t lse_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const __m512 divisor = _mm512_set1_ps(running.sum[row]);
    for (int64_t i = 0; i < features; i += kLanes) {
      store(out.row(row) + i, _mm512_div_ps(load(sums.row(row) + i), divisor));
    }
    lse[row * lse_stride] = scale * running.largest[row] + std::log(running.sum[row]);
  }
}

template <class T>
MESHTRAIN_LANES void row_products(Matrix<const T> a, Matrix<const T> b, int64_t rows, int64_t columns, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < columns; i += kLanes)
      sum = _mm512_fmadd_ps(load(a.row(row) + i), load(b.row(row) + i), sum);
    out[row] = _mm512_reduce_add_ps(sum);
  }
}

// The instances.
#define MESHTRAIN_TILES(T)                                                                                        \
  template void round_rows(Matrix<const float>, int64_t, int64_t, Matrix<T>);                                     \
  template void transpose_back(Matrix<const float>, int64_t, int64_t, Matrix<T>);                                 \
  template void exponentials(Matrix<const float>, int64_t, int64_t, int64_t, int64_t, float, RunningSoftmax,      \
                             Matrix<T>, Matrix<float>, int64_t);                                                  \
  template void finish(RunningSoftmax, Matrix<const float>, int64_t, int64_t, float, Matrix<T>, float*, int64_t); \
  template void row_products(Matrix<const T>, Matrix<const T>, int64_t, int64_t, float*);
MESHTRAIN_TILES(float)
MESHTRAIN_TILES(BFloat16)

}  // namespace meshtrain::host_tiles

#endif
