#include "mesh/device/cuda/kernel.cuh"
#include "runtime/training/model/operators/glu_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;  // vectors that a thread loads at once

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + expf(-x));
}

/// Computes a gate's function, and with `slope` also its derivative.
template <Gate kGate>
__device__ __forceinline__ float gated(float x, float* slope = nullptr) {
  if constexpr (kGate == Gate::Silu) {
    const float s = sigmoid(x);
    if (slope != nullptr) *slope = s * (1.0f + x * (1.0f - s));
    return x * s;
  } else {  // 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
    constexpr float kRoot = 0.7978845608028654f, kCubic = 0.044715f;
    const float y = fminf(fmaxf(x, -20.0f), 20.0f);  // beyond it tanh is 1, and powers would overflow
    const float t = tanhf(kRoot * (y + kCubic * y * y * y));
    if (slope != nullptr) {
      *slope = 0.5f * (1.0f + t) + 0.5f * y * (1.0f - t * t) * kRoot * (1.0f + 3.0f * kCubic * y * y);
    }
    return 0.5f * x * (1.0f + t);
  }
}

/// The part of a thread: column(i), i < kUnroll, in rows from `row` on in steps of `rows_at_once`.
template <int N>
struct ThreadPart {
  int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
  int64_t rows_at_once = static_cast<int64_t>(gridDim.y) * blockDim.y;

  __device__ __forceinline__ int64_t column(int i) const {
    return ((static_cast<int64_t>(blockIdx.x) * kUnroll + i) * blockDim.x + threadIdx.x) * N;
  }
};

template <Gate kGate, class T, int N>
__global__ void __launch_bounds__(kThreads)
    forward(const T* __restrict__ gate_up, T* __restrict__ out, int64_t rows, int64_t features) {
  const ThreadPart<N> part;
  for (int64_t row = part.row; row < rows; row += part.rows_at_once) {
    const T* gates = gate_up + row * 2 * features;
    Pack<T, N> gate_pack[kUnroll], up_pack[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t column = part.column(i);
      if (column >= features) continue;
      gate_pack[i].load(gates + column);
      up_pack[i].load(gates + features + column);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t column = part.column(i);
      if (column >= features) continue;
      float gate[N], up[N];
      gate_pack[i].to(gate);
      up_pack[i].to(up);
#pragma unroll
      for (int j = 0; j < N; ++j) up[j] *= gated<kGate>(gate[j]);
      up_pack[i].from(up);
      up_pack[i].store(out + row * features + column);
    }
  }
}

// Computes d gate = g up f'(gate), d up = g f(gate).
template <Gate kGate, class T, int N>
__global__ void __launch_bounds__(kThreads) backward(const T* __restrict__ grad, const T* __restrict__ gate_up,
                                                     T* __restrict__ out, int64_t rows, int64_t features) {
  const ThreadPart<N> part;
  for (int64_t row = part.row; row < rows; row += part.rows_at_once) {
    const T* gates = gate_up + row * 2 * features;
    T* to = out + row * 2 * features;
    Pack<T, N> gate_pack[kUnroll], up_pack[kUnroll], grad_pack[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t column = part.column(i);
      if (column >= features) continue;
      gate_pack[i].load(gates + column);
      up_pack[i].load(gates + features + column);
      grad_pack[i].load(grad + row * features + column);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t column = part.column(i);
      if (column >= features) continue;
      float gate[N], up[N], g[N];
      gate_pack[i].to(gate);
      up_pack[i].to(up);
      grad_pack[i].to(g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float slope;
        const float grad_up = g[j] * gated<kGate>(gate[j], &slope);
        gate[j] = g[j] * up[j] * slope;
        up[j] = grad_up;
      }
      gate_pack[i].from(gate);
      up_pack[i].from(up);
      gate_pack[i].store(to + column);
      up_pack[i].store(to + features + column);
    }
  }
}

struct Shape {
  dim3 grid, block;
};

Shape shape_of(int64_t rows, int64_t features, int vector) {
  const int64_t each = divided_up(divided_up(features, vector), kUnroll);  // threads that a row takes
  const unsigned columns = static_cast<unsigned>(std::min(kThreads, power_of_two_from(each)));
  const dim3 block(columns, kThreads / columns);
  const auto across = static_cast<unsigned>(divided_up(each, columns));
  const unsigned down = grid_for(divided_up(rows, block.y), divided_up(32, across));
  return {dim3(across, std::min(down, 65535u)), block};
}

}  // namespace

void glu(Element element, Gate gate, const void* gate_up, void* out, int64_t rows, int64_t features,
         cudaStream_t stream) {
  if (rows == 0 || features == 0) return;
  for_element(element, [&]<class T>() {
    const auto with = [&](auto kernel, int vector) {
      const Shape shape = shape_of(rows, features, vector);
      launch("glu", kernel, shape.grid, shape.block, stream, static_cast<const T*>(gate_up), static_cast<T*>(out), rows,
             features);
    };
    const bool vectors = features % kVector<T> == 0 && aligned(gate_up, out);
    const auto with_gate = [&]<Gate kGate>() {
      vectors ? with(forward<kGate, T, kVector<T>>, kVector<T>) : with(forward<kGate, T, 1>, 1);
    };
    gate == Gate::Silu ? with_gate.template operator()<Gate::Silu>() : with_gate.template operator()<Gate::GeluTanh>();
  });
}

void glu_backward(Element element, Gate gate, const void* grad, const void* gate_up, void* out, int64_t rows,
                  int64_t features, cudaStream_t stream) {
  if (rows == 0 || features == 0) return;
  for_element(element, [&]<class T>() {
    const auto with = [&](auto kernel, int vector) {
      const Shape shape = shape_of(rows, features, vector);
      launch("glu_backward", kernel, shape.grid, shape.block, stream, static_cast<const T*>(grad),
             static_cast<const T*>(gate_up), static_cast<T*>(out), rows, features);
    };
    const bool vectors = features % kVector<T> == 0 && aligned(grad, gate_up, out);
    const auto with_gate = [&]<Gate kGate>() {
      vectors ? with(backward<kGate, T, kVector<T>>, kVector<T>) : with(backward<kGate, T, 1>, 1);
    };
    gate == Gate::Silu ? with_gate.template operator()<Gate::Silu>() : with_gate.template operator()<Gate::GeluTanh>();
  });
}

}  // namespace meshtrain::cuda
