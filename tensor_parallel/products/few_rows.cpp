#include "tensor_parallel/products/few_rows.h"

#if defined(__x86_64__)

namespace meshtrain::few_rows {
namespace {

/// Columns at once, far from each other: the processor fetches ahead in each of so many places, which doubles what one
/// thread reads where pages are small.
constexpr int64_t kTogether = 4;

/// Writes `Columns` columns of the product of `Count` rows; each is `apart` columns from the one before.
template <int Count, int Columns, class T>
MESHTRAIN_LANES_INLINE void multiply_columns(Rows<const T> x, Rows<const T> w, int64_t apart, int64_t terms,
                                             Rows<T> out) {
  Lanes sums[Count][Columns];
  for (auto& row : sums) {
    for (Lanes& sum : row) sum = broadcast(0);
  }
  for (int64_t i = 0; i < terms; i += kLanes) {
    const Mask lanes = lanes_below(terms - i);
    Lanes factors[Count];
    for (int row = 0; row < Count; ++row) factors[row] = load_some(x.data + row * x.stride + i, lanes);
    for (int column = 0; column < Columns; ++column) {
      const Lanes read = load_some(w.data + column * apart * w.stride + i, lanes);
      for (int row = 0; row < Count; ++row) sums[row][column] = fmadd(read, factors[row], sums[row][column]);
    }
  }
  for (int row = 0; row < Count; ++row) {
    for (int column = 0; column < Columns; ++column) {
      out.data[row * out.stride + column * apart] = static_cast<T>(sum_of(sums[row][column]));
    }
  }
}

template <int Count, class T>
MESHTRAIN_LANES void multiply_rows(Rows<const T> x, Rows<const T> w, int64_t columns, int64_t terms, Rows<T> out) {
  const auto from = [&](int64_t column) { return Rows<const T>{w.data + column * w.stride, w.stride}; };
  const auto to = [&](int64_t column) { return Rows<T>{out.data + column, out.stride}; };
  const int64_t apart = columns / kTogether;
  for (int64_t i = 0; i < apart; ++i) multiply_columns<Count, kTogether>(x, from(i), apart, terms, to(i));
  for (int64_t i = apart * kTogether; i < columns; ++i) multiply_columns<Count, 1>(x, from(i), 1, terms, to(i));
}

}  // namespace

template <class Set, class T>
MESHTRAIN_LANES void multiply(Rows<const T> x, int64_t rows, Rows<const T> w, int64_t columns, int64_t terms,
                              Rows<T> out) {
  static_assert(kMost == 4);
  switch (rows) {
    case 1:
      return multiply_rows<1>(x, w, columns, terms, out);
    case 2:
      return multiply_rows<2>(x, w, columns, terms, out);
    case 3:
      return multiply_rows<3>(x, w, columns, terms, out);
    default:
      return multiply_rows<4>(x, w, columns, terms, out);
  }
}

using c10::BFloat16;
template void multiply<ThisSet>(Rows<const float>, int64_t, Rows<const float>, int64_t, int64_t, Rows<float>);
template void multiply<ThisSet>(Rows<const BFloat16>, int64_t, Rows<const BFloat16>, int64_t, int64_t, Rows<BFloat16>);

}  // namespace meshtrain::few_rows

#endif
