#include <stdexcept>
#include <type_traits>

#include "mesh/device/cuda/kernel.cuh"
#include "runtime/training/model/operators/rms_norm_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kTile = kWarp * kWarp;  // threads that sum up columns

/// The part of a row that one of W threads holds: V times N elements. W = 0: one of blockDim.x threads.
template <class T, int N, int V, int W>
struct Part {
  Pack<T, N> packs[V];

  __device__ __forceinline__ static int64_t column(int v) {
    return (static_cast<int64_t>(v) * (W > 0 ? W : blockDim.x) + threadIdx.x) * N;
  }
  /// Loads a part of `row`, of Ts or of a type that T holds exactly. `size`: 0 for a row after the last.
  template <class X>
  __device__ __forceinline__ void load(int v, const X* row, int64_t size) {
    if (column(v) >= size) {
      packs[v].zero();
    } else if constexpr (std::is_same_v<X, T>) {
      packs[v].load(row + column(v));
    } else {
      Pack<X, N> pack;
      pack.load(row + column(v));
      float values[N];
      pack.to(values);
      packs[v].from(values);
    }
  }
  template <class X>
  __device__ __forceinline__ void load(const X* row, int64_t size) {
#pragma unroll
    for (int v = 0; v < V; ++v) load(v, row, size);
  }
};

template <class T>
__device__ __forceinline__ const T* row_of(const Rows& rows, int64_t row) {
  const int64_t outer = row / rows.inner, inner = row - outer * rows.inner;
  return static_cast<const T*>(rows.data) + outer * rows.outer_stride + inner * rows.inner_stride;
}

// X: of x, S: of the sum that is normalised, T: of weight and result.
template <class X, class S, class T, int N, int V, int W>
__global__ void __launch_bounds__(W > kMaxThreads ? W : kMaxThreads)
    forward(Rows x, const S* __restrict__ residual, const T* __restrict__ weight, S* __restrict__ sum,
            T* __restrict__ out, float* __restrict__ rstd, int64_t rows, int64_t size, float eps, float offset,
            bool rounds_first) {
  __shared__ float shared[2][kWarp];
  RowSum row_sum(shared);
  const int64_t rows_at_once = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < rows; first += rows_at_once) {
    const int64_t row = first + threadIdx.y, length = row < rows ? size : 0;
    Part<S, N, V, W> part, added;
    part.load(length > 0 ? row_of<X>(x, row) : nullptr, length);
    if (residual != nullptr) added.load(residual + row * size, length);
    float squares = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float values[N];
      part.packs[v].to(values);
      if (residual != nullptr) {
        float others[N];
        added.packs[v].to(others);
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = rounded<S>(values[i] + others[i]);
        part.packs[v].from(values);
        if (part.column(v) < length) part.packs[v].store(sum + row * size + part.column(v));
      }
#pragma unroll
      for (int i = 0; i < N; ++i) squares += values[i] * values[i];
    }
    const float r = rsqrtf(row_sum(squares) / static_cast<float>(size) + eps);
    if (length > 0 && threadIdx.x == 0) rstd[row] = r;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int64_t column = part.column(v);
      if (column >= length) continue;
      Pack<T, N> pack;
      pack.load(weight + column);
      float values[N], weights[N];
      part.packs[v].to(values);
      pack.to(weights);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalised = values[i] * r;
        values[i] = (rounds_first ? rounded<T>(normalised) : normalised) * (weights[i] + offset);
      }
      pack.from(values);
      pack.store(out + row * size + column);
    }
  }
}

/// True when the backward's threads keep gradients, x and weights between its two passes over a row. Where that would
/// be more than 64 bytes each, or a register for every half, they would not fit beside the sums: the second pass reads
/// them again, from the cache. With kPlusOne the compiler would keep every 1 + weight as well.
template <class T, int N, int V, bool kPlusOne>
constexpr bool kKeeps = !kPlusOne && N > 1 && sizeof(Pack<T, N>[V]) <= 64;

// Computes dx = r (g - n mean(g n)), with n = x r and g = dy weight, or dy (1 + weight) if kPlusOne, and partial sums
// of dy n over the rows of these threads.
template <class S, class T, int N, int V, int W, bool kPlusOne>
__global__ void __launch_bounds__(W > kMaxThreads ? W : kMaxThreads)
    backward(const T* __restrict__ grad, const S* __restrict__ grad_sum, Rows x, const T* __restrict__ weight,
             const float* __restrict__ rstd, S* __restrict__ dx, float* __restrict__ partial, int64_t rows,
             int64_t size) {
  __shared__ float shared[2][kWarp];
  RowSum row_sum(shared);
  constexpr float kOffset = kPlusOne ? 1.0f : 0.0f;
  float of_weight[V][N] = {};
  const int64_t rows_at_once = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < rows; first += rows_at_once) {
    const int64_t row = first + threadIdx.y, length = row < rows ? size : 0;
    Part<T, N, V, W> grads, weights;
    Part<S, N, V, W> values;
    const T* of_grad = grad + row * size;
    const S* of_x = length > 0 ? row_of<S>(x, row) : nullptr;
    const auto load = [&](int v) {
      grads.load(v, of_grad, length);
      values.load(v, of_x, length);
      weights.load(v, weight, length);
    };
    if constexpr (kKeeps<S, N, V, kPlusOne>) {
#pragma unroll
      for (int v = 0; v < V; ++v) load(v);
    }
    const float r = length > 0 ? rstd[row] : 0.0f;
    float projection = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if constexpr (!kKeeps<S, N, V, kPlusOne>) load(v);
      float g[N], n[N], w[N];
      grads.packs[v].to(g);
      values.packs[v].to(n);
      weights.packs[v].to(w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float product = g[i] * (n[i] * r);
        of_weight[v][i] += product;
        projection += product * (w[i] + kOffset);
      }
    }
    if (dx == nullptr) continue;
    projection = row_sum(projection) / static_cast<float>(size);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int64_t column = values.column(v);
      if (column >= length) continue;
      if constexpr (!kKeeps<S, N, V, kPlusOne>) load(v);
      float g[N], n[N], w[N];
      grads.packs[v].to(g);
      values.packs[v].to(n);
      weights.packs[v].to(w);
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] = r * (g[i] * (w[i] + kOffset) - n[i] * r * projection);
      Pack<S, N> pack;
      if (grad_sum != nullptr) {
        pack.load(grad_sum + row * size + column);
        pack.to(n);
#pragma unroll
        for (int i = 0; i < N; ++i) g[i] += n[i];
      }
      pack.from(g);
      pack.store(dx + row * size + column);
    }
  }
  if (partial == nullptr) return;
  float* to = partial + (static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y) * size;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int64_t column = Part<T, N, V, W>::column(v);
    if (column >= size) continue;
    Pack<float, N> pack;
    pack.from(of_weight[v]);
    pack.store(to + column);
  }
}

template <class T>
__global__ void __launch_bounds__(kTile)
    sum_columns(const float* __restrict__ partial, int64_t count, int64_t size, T* __restrict__ out, bool add) {
  __shared__ float sums[kWarp][kWarp + 1];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < size) {
#pragma unroll 4
    for (int64_t row = threadIdx.y; row < count; row += kWarp) sum += partial[row * size + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const float total = sum_of_lanes(sums[threadIdx.x][threadIdx.y]);
  const int64_t of_warp = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && of_warp < size) out[of_warp] = narrow<T>(add ? wide(out[of_warp]) + total : total);
}

/// Returns the number of elements of a row that a thread holds.
int per_thread(int64_t size) {
  return size < 1024 ? 8 : size <= 16 * kMaxThreads ? 16 : 32;
}

dim3 block_of(int64_t size, int elements) {
  const int64_t threads = divided_up(size, elements);
  if (threads > kWarp) return dim3(static_cast<unsigned>(divided_up(threads, kWarp) * kWarp));
  const auto columns = static_cast<unsigned>(power_of_two_from(threads));
  return dim3(columns, 128 / columns);
}

unsigned blocks_of_backward(int64_t rows, dim3 block) {
  const int64_t threads = static_cast<int64_t>(block.x) * block.y;
  return grid_for(divided_up(rows, block.y), std::max<int64_t>(1, 512 / threads));
}

/// The block of a row that is read element by element, kOddPart a thread. Few widths, which are known at compile time:
/// the distances between a thread's elements then take no registers.
constexpr int kOddPart = 16;
dim3 odd_block_of(int64_t size) {
  return size <= kOddPart * 32 ? dim3(32, 4) : size <= kOddPart * 256 ? dim3(256) : dim3(1024);
}

/// Calls with<S, T>() with the types that `elements` stand for.
template <class With>
void for_elements(const NormElements& elements, With with) {
  for_element(elements.out, [&]<class T>() {
    if (elements.stream == elements.out) return with.template operator()<T, T>();
    if constexpr (!std::is_same_v<T, float>) {
      if (elements.stream == Element::Float) return with.template operator()<float, T>();
    }
    throw std::logic_error("rms_norm: x in half precision needs weights of the same dtype");
  });
}

/// Calls with<N, V, W>(block) for the division of a row of `size` Ts: 16 bytes at a time if `vectors`, else one by one.
template <class T, class With>
void for_shape(int64_t size, bool vectors, With with) {
  constexpr int kN = kVector<T>;
  const int elements = per_thread(size);
  const dim3 block = vectors ? block_of(size, elements) : odd_block_of(size);
  if (!vectors && block.x == 32) return with.template operator()<1, kOddPart, 32>(block);
  if (!vectors && block.x == 256) return with.template operator()<1, kOddPart, 256>(block);
  if (!vectors) return with.template operator()<1, kOddPart, 1024>(block);
  if (elements == 8) return with.template operator()<kN, 8 / kN, 0>(block);
  if (elements == 16) return with.template operator()<kN, 16 / kN, 0>(block);
  return with.template operator()<kN, 32 / kN, 0>(block);
}

template <class T>
bool vectors_in(const Rows& x, int64_t size) {
  return size % kVector<T> == 0 && x.inner_stride % kVector<T> == 0 && x.outer_stride % kVector<T> == 0 &&
         aligned(x.data);
}

}  // namespace

void rms_norm(const NormElements& elements, const Rows& x, const void* residual, const AppliedWeight& weight, void* sum,
              void* out, float* rstd, int64_t rows, int64_t size, double eps, cudaStream_t stream) {
  if (rows == 0 || size == 0) return;
  for_elements(elements, [&]<class S, class T>() {
    const bool vectors = vectors_in<S>(x, size) && aligned(residual, weight.weight, sum, out);
    for_shape<S>(size, vectors, [&]<int N, int V, int W>(dim3 block) {
      const auto kernel = residual != nullptr ? forward<T, S, T, N, V, W> : forward<S, S, T, N, V, W>;
      launch("rms_norm", kernel, grid_for(divided_up(rows, block.y), 32), block, stream, x,
             static_cast<const S*>(residual), static_cast<const T*>(weight.weight), static_cast<S*>(sum),
             static_cast<T*>(out), rstd, rows, size, static_cast<float>(eps), weight.offset, weight.rounds_first);
    });
  });
}

int64_t rms_norm_partial_rows(int64_t rows, int64_t size) {
  // The most that any division of the row needs, as the division also depends on alignment.
  int64_t most = 0;
  for (const dim3 block : {block_of(size, per_thread(size)), odd_block_of(size)}) {
    most = std::max(most, static_cast<int64_t>(blocks_of_backward(rows, block)) * block.y);
  }
  return most;
}

void rms_norm_backward(const NormElements& elements, const void* grad, const void* grad_sum, const Rows& x,
                       const AppliedWeight& weight, const float* rstd, const RmsNormGradients& gradients, int64_t rows,
                       int64_t size, cudaStream_t stream) {
  if (rows == 0 || size == 0) return;
  for_elements(elements, [&]<class S, class T>() {
    const bool vectors = vectors_in<S>(x, size) && aligned(grad, grad_sum, weight.weight, gradients.x);
    for_shape<S>(size, vectors, [&]<int N, int V, int W>(dim3 block) {
      const unsigned blocks = blocks_of_backward(rows, block);
      const int64_t written = static_cast<int64_t>(blocks) * block.y, there = rms_norm_partial_rows(rows, size);
      if (gradients.partial != nullptr && written < there) {
        check(cudaMemsetAsync(gradients.partial + written * size, 0,
                              static_cast<size_t>((there - written) * size) * sizeof(float), stream),
              "rms_norm_backward");
      }
      const auto kernel = weight.offset != 0 ? backward<S, T, N, V, W, true> : backward<S, T, N, V, W, false>;
      launch("rms_norm_backward", kernel, blocks, block, stream, static_cast<const T*>(grad),
             static_cast<const S*>(grad_sum), x, static_cast<const T*>(weight.weight), rstd,
             static_cast<S*>(gradients.x), gradients.partial, rows, size);
    });
  });
}

void sum_rows(Element element, const float* partial, int64_t count, int64_t size, void* out, bool add,
              cudaStream_t stream) {
  if (size == 0) return;
  for_element(element, [&]<class T>() {
    launch("sum_rows", sum_columns<T>, static_cast<unsigned>(divided_up(size, kWarp)), dim3(kWarp, kWarp), stream,
           partial, count, size, static_cast<T*>(out), add);
  });
}

}  // namespace meshtrain::cuda
