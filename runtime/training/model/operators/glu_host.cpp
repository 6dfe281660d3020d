#include "runtime/training/model/operators/glu_host.h"

#include <numbers>

#include "mesh/device/host_lanes.h"

#if defined(__x86_64__)

namespace meshtrain::glu_host {
namespace {

using c10::BFloat16;

constexpr float kLog2E = std::numbers::log2e_v<float>;
constexpr float kGeluInner = 0.79788456080286535588F, kGeluCube = 0.044715F;  // sqrt(2 / pi); gelu's tanh form

/// An activation's value and derivative.
struct Slope {
  Lanes value, derivative;
};

/// Computes 1 / (1 + exp(-x)).
MESHTRAIN_LANES_INLINE Lanes sigmoid_of(Lanes x) {
  const Lanes one = broadcast(1);
  return one / (one + exp2_of(x * broadcast(-kLog2E)));
}

/// Computes silu, x s with s = sigmoid(x), and its derivative s (1 + x (1 - s)).
MESHTRAIN_LANES_INLINE Slope silu_of(Lanes x) {
  const Lanes one = broadcast(1), s = sigmoid_of(x);
  const Lanes inner = fmadd(x, one - s, one);
  return {x * s, s * inner};
}

/// Computes gelu's tanh form, x s with s = (1 + tanh(u)) / 2 = sigmoid(2 u) and u = kGeluInner (x + kGeluCube x^3), and
/// its derivative s + 2 x s (1 - s) u'.
MESHTRAIN_LANES_INLINE Slope gelu_of(Lanes x) {
  const Lanes one = broadcast(1), square = x * x;
  const Lanes inner = fmadd(square, broadcast(2 * kGeluInner * kGeluCube),
                            broadcast(2 * kGeluInner));  // 2 u / x
  const Lanes s = sigmoid_of(x * inner);
  const Lanes slope = fmadd(square, broadcast(6 * kGeluInner * kGeluCube),
                            broadcast(2 * kGeluInner));  // 2 u'
  const Lanes rest = x * slope * (one - s);
  return {x * s, fmadd(s, rest, s)};
}

}  // namespace

template <class Set, class T>
MESHTRAIN_LANES void forward(const T* gate_up, int64_t rows, int64_t features, bool gelu, T* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const T *const gate = gate_up + row * 2 * features, *const up = gate + features;
    for (int64_t i = 0; i < features; i += kLanes) {
      const Lanes x = load(gate + i);
      const Slope slope = gelu ? gelu_of(x) : silu_of(x);
      store(out + row * features + i, slope.value * load(up + i));
    }
  }
}

template <class Set, class T>
MESHTRAIN_LANES void backward(const T* grad, const T* gate_up, int64_t rows, int64_t features, bool gelu,
                              T* grad_gate_up) {
  for (int64_t row = 0; row < rows; ++row) {
    const T *const gate = gate_up + row * 2 * features, *const up = gate + features;
    T *const to_gate = grad_gate_up + row * 2 * features, *const to_up = to_gate + features;
    for (int64_t i = 0; i < features; i += kLanes) {
      const Lanes x = load(gate + i), dy = load(grad + row * features + i);
      const Slope slope = gelu ? gelu_of(x) : silu_of(x);
      store(to_gate + i, dy * load(up + i) * slope.derivative);
      store(to_up + i, dy * slope.value);
    }
  }
}

template <class Set, class T>
MESHTRAIN_LANES void weighted_backward(T* grad, const T* gate_up, const float* weights, int64_t rows, int64_t features,
                                       bool gelu, T* grad_gate_up, float* dots) {
  for (int64_t row = 0; row < rows; ++row) {
    const T *const gate = gate_up + row * 2 * features, *const up = gate + features;
    T *const to_gate = grad_gate_up + row * 2 * features, *const to_up = to_gate + features;
    const Lanes weight = broadcast(weights[row]);
    Lanes sum = broadcast(0);
    for (int64_t i = 0; i < features; i += kLanes) {
      const Lanes x = load(gate + i), factor = load(up + i), unweighted = load(grad + row * features + i);
      const Slope slope = gelu ? gelu_of(x) : silu_of(x);
      const Lanes value = rounded_to<T>(slope.value * factor), dy = rounded_to<T>(unweighted * weight);
      store(grad + row * features + i, value * weight);
      store(to_gate + i, dy * factor * slope.derivative);
      store(to_up + i, dy * slope.value);
      sum = fmadd(unweighted, value, sum);
    }
    dots[row] = sum_of(sum);
  }
}

template void forward<ThisSet>(const float*, int64_t, int64_t, bool, float*);
template void forward<ThisSet>(const BFloat16*, int64_t, int64_t, bool, BFloat16*);
template void backward<ThisSet>(const float*, const float*, int64_t, int64_t, bool, float*);
template void backward<ThisSet>(const BFloat16*, const BFloat16*, int64_t, int64_t, bool, BFloat16*);
template void weighted_backward<ThisSet>(float*, const float*, const float*, int64_t, int64_t, bool, float*, float*);
template void weighted_backward<ThisSet>(BFloat16*, const BFloat16*, const float*, int64_t, int64_t, bool, BFloat16*,
                                         float*);

}  // namespace meshtrain::glu_host

#endif
