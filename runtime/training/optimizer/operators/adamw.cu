#include <type_traits>

#include "mesh/device/cuda/kernel.cuh"
#include "runtime/training/optimizer/operators/adamw_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 8;  // elements of a thread

template <class V, class G, class W, int N>
__global__ void __launch_bounds__(kThreads)
    update(V* __restrict__ values, V* __restrict__ first_moment, V* __restrict__ second_moment,
           const G* __restrict__ gradients, W* __restrict__ rounded_values, int64_t n, AdamWRule rule) {
  if (rule.skip != nullptr && *rule.skip) return;
  __shared__ float decay, step_size, correction, factor;
  if (threadIdx.x == 0) {
    const double rate = *rule.learning_rate * rule.rate, step = *rule.step;
    decay = static_cast<float>(1 - rate * rule.weight_decay);
    step_size = static_cast<float>(rate / (1 - pow(rule.beta1, step)));
    correction = static_cast<float>(1 / sqrt(1 - pow(rule.beta2, step)));
    factor = rule.factor == nullptr ? 1.0f : static_cast<float>(*rule.factor);
  }
  __syncthreads();
  const float beta1 = static_cast<float>(rule.beta1), rest1 = static_cast<float>(1 - rule.beta1);
  const float beta2 = static_cast<float>(rule.beta2), rest2 = static_cast<float>(1 - rule.beta2);
  const float eps = static_cast<float>(rule.eps);

  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N; i < n; i += stride) {
    Pack<V, N> values_pack, first_pack, second_pack;
    Pack<G, N> gradients_pack;
    values_pack.load(values + i);
    first_pack.load(first_moment + i);
    second_pack.load(second_moment + i);
    gradients_pack.load(gradients + i);
    float w[N], m[N], v[N], g[N];
    values_pack.to(w);
    first_pack.to(m);
    second_pack.to(v);
    gradients_pack.to(g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      // The same operations in the same order as in adamw_host.cpp, so that host and GPU give the same bits.
      const float gradient = rounded<G>(g[j] * factor);
      m[j] = fmaf(rest1, gradient, beta1 * m[j]);
      v[j] = fmaf(rest2 * gradient, gradient, beta2 * v[j]);
      w[j] = fmaf(-step_size, m[j] / fmaf(sqrtf(v[j]), correction, eps), decay * w[j]);
    }
    values_pack.from(w);
    first_pack.from(m);
    second_pack.from(v);
    values_pack.store(values + i);
    first_pack.store(first_moment + i);
    second_pack.store(second_moment + i);
    if (rounded_values != nullptr) {
      Pack<W, N> rounded_pack;
      rounded_pack.from(w);
      rounded_pack.store(rounded_values + i);
    }
  }
}

template <class V, class G, class W, int N>
void update_by(const AdamWBuffers& buffers, int64_t n, const AdamWRule& rule, cudaStream_t stream) {
  launch("adamw_", update<V, G, W, N>, grid_for(divided_up(n, int64_t{kThreads} * N), 8), kThreads, stream,
         static_cast<V*>(buffers.values), static_cast<V*>(buffers.first_moment), static_cast<V*>(buffers.second_moment),
         static_cast<const G*>(buffers.gradients), static_cast<W*>(buffers.rounded), n, rule);
}

/// Returns the buffers after their first `count` elements.
AdamWBuffers after_first(const AdamWBuffers& buffers, int64_t count) {
  const auto moved = [&](auto* data, Element element) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>, const char, char>;
    const int64_t size = element == Element::Float ? 4 : 2;
    return data == nullptr ? data : static_cast<decltype(data)>(static_cast<Byte*>(data) + count * size);
  };
  AdamWBuffers rest = buffers;
  rest.values = moved(buffers.values, buffers.values_element);
  rest.first_moment = moved(buffers.first_moment, buffers.values_element);
  rest.second_moment = moved(buffers.second_moment, buffers.values_element);
  rest.gradients = moved(buffers.gradients, buffers.gradients_element);
  rest.rounded = moved(buffers.rounded, buffers.rounded_element);
  return rest;
}

template <class V, class G, class W>
void update_all(const AdamWBuffers& buffers, int64_t n, const AdamWRule& rule, cudaStream_t stream) {
  const bool vectors =
      aligned(buffers.values, buffers.first_moment, buffers.second_moment, buffers.gradients, buffers.rounded);
  const int64_t full = vectors ? n - n % kAtOnce : 0;
  if (full > 0) update_by<V, G, W, kAtOnce>(buffers, full, rule, stream);
  if (full < n) update_by<V, G, W, 1>(after_first(buffers, full), n - full, rule, stream);
}

}  // namespace

void adamw(const AdamWBuffers& buffers, int64_t n, const AdamWRule& rule, cudaStream_t stream) {
  if (n == 0) return;
  for_element(buffers.gradients_element, [&]<class G>() {
    if (buffers.values_element == Element::BFloat16) {
      update_all<__nv_bfloat16, G, __nv_bfloat16>(buffers, n, rule, stream);
    } else if (buffers.rounded_element == Element::Half) {
      update_all<float, G, __half>(buffers, n, rule, stream);
    } else {
      update_all<float, G, __nv_bfloat16>(buffers, n, rule, stream);
    }
  });
}

}  // namespace meshtrain::cuda
