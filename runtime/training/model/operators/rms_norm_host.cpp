#include "runtime/training/model/operators/rms_norm_host.h"

#include <cmath>

#include "mesh/device/host_lanes.h"
#include "runtime/training/model/pieces.h"

#if defined(__x86_64__)

namespace meshtrain::rms_norm_host {
namespace {

using c10::BFloat16;

template <class W>
MESHTRAIN_LANES_INLINE Lanes factor_of(const W* weight, int64_t i, bool plus_one) {
  const Lanes factor = load(weight + i);
  return plus_one ? factor + broadcast(1) : factor;
}

/// Normalises a row, whose squares have the sum `squares`; returns its rstd.
template <class X, class W>
MESHTRAIN_LANES_INLINE float normalise(const X* x, const W* weight, const Rows& of, float eps, Lanes squares, W* out) {
  const bool rounds = of.applied == static_cast<int64_t>(NormWeight::Rounded);
  const bool plus_one = of.applied == static_cast<int64_t>(NormWeight::PlusOne);
  const float rstd = 1 / std::sqrt(sum_of(squares) / static_cast<float>(of.features) + eps);
  const Lanes scale = broadcast(rstd);
  for (int64_t i = 0; i < of.features; i += kLanes) {
    Lanes normalised = load(x + i) * scale;
    if (rounds) normalised = rounded_to<W>(normalised);
    store(out + i, normalised * factor_of(weight, i, plus_one));
  }
  return rstd;
}

}  // namespace

template <class Set, class X, class W>
MESHTRAIN_LANES void forward(const X* x, const W* weight, const Rows& of, float eps, W* out, float* rstd) {
  for (int64_t row = 0; row < of.rows; ++row) {
    const X* const from = x + row * of.features;
    Lanes squares = broadcast(0);
    for (int64_t i = 0; i < of.features; i += kLanes) {
      const Lanes values = load(from + i);
      squares = fmadd(values, values, squares);
    }
    rstd[row] = normalise(from, weight, of, eps, squares, out + row * of.features);
  }
}

template <class Set, class X, class W>
MESHTRAIN_LANES void forward_of_sum(const W* x, const X* residual, const W* weight, const Rows& of, float eps, X* sum,
                                    W* out, float* rstd) {
  for (int64_t row = 0; row < of.rows; ++row) {
    const int64_t first = row * of.features;
    Lanes squares = broadcast(0);
    for (int64_t i = first; i < first + of.features; i += kLanes) {
      const Lanes values = rounded_to<X>(load(x + i) + load(residual + i));
      store(sum + i, values);
      squares = fmadd(values, values, squares);
    }
    rstd[row] = normalise(sum + first, weight, of, eps, squares, out + first);
  }
}

template <class Set, class X, class W>
MESHTRAIN_LANES void backward(const W* grad, const X* grad_sum, const X* x, const W* weight, const float* rstd,
                              const Rows& of, X* grad_x, float* grad_weight) {
  const bool plus_one = of.applied == static_cast<int64_t>(NormWeight::PlusOne);
  for (int64_t i = 0; grad_weight != nullptr && i < of.features; ++i) grad_weight[i] = 0;
  for (int64_t row = 0; row < of.rows; ++row) {
    const int64_t first = row * of.features;
    const Lanes scale = broadcast(rstd[row]);
    Lanes products = broadcast(0);
    for (int64_t i = 0; i < of.features; i += kLanes) {
      const Lanes dy = load(grad + first + i), normalised = load(x + first + i) * scale;
      const Lanes share = dy * normalised;
      if (grad_weight != nullptr) store(grad_weight + i, load(grad_weight + i) + share);
      products = fmadd(share, factor_of(weight, i, plus_one), products);
    }
    if (grad_x == nullptr) continue;
    const Lanes mean = broadcast(sum_of(products) / static_cast<float>(of.features));
    for (int64_t i = 0; i < of.features; i += kLanes) {
      const Lanes scaled = load(grad + first + i) * factor_of(weight, i, plus_one);
      const Lanes normalised = load(x + first + i) * scale;
      Lanes dx = fnmadd(normalised, mean, scaled) * scale;
      if (grad_sum != nullptr) dx = rounded_to<X>(dx) + load(grad_sum + first + i);
      store(grad_x + first + i, dx);
    }
  }
}

// The dtypes of the input and of the output: one for both, or a residual stream in fp32 beside halves.
#define MESHTRAIN_NORM(X, W)                                                                               \
  template void forward<ThisSet>(const X*, const W*, const Rows&, float, W*, float*);                      \
  template void forward_of_sum<ThisSet>(const W*, const X*, const W*, const Rows&, float, X*, W*, float*); \
  template void backward<ThisSet>(const W*, const X*, const X*, const W*, const float*, const Rows&, X*, float*);
MESHTRAIN_NORM(float, float)
MESHTRAIN_NORM(BFloat16, BFloat16)
MESHTRAIN_NORM(float, BFloat16)

}  // namespace meshtrain::rms_norm_host

#endif
