#include "mesh/device/cuda/kernel.cuh"
#include "tensor_parallel/operators/embedding_gradient_kernel.h"

// A segment is the tokens of one id, adjacent when tokens are sorted by id. Blocks sum tiles of the sorted tokens. A
// segment within a tile is added to the table at once. A segment that crosses tiles leaves a part in each, and a second
// kernel sums the parts. So many blocks share the sum of a frequent token, and every sum has a fixed order.
namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 128;  // threads that share the columns
constexpr int kTile = 32;      // tokens
constexpr int kUnroll = 8;     // rows that a thread loads at once

/// Parts per tile: of a segment that began in an earlier tile, and of one that continues in the next.
constexpr int kParts = 2;
__device__ __forceinline__ int64_t ending_part(int64_t tile) {
  return kParts * tile;
}
__device__ __forceinline__ int64_t beginning_part(int64_t tile) {
  return kParts * tile + 1;
}

template <class T, int N>
__device__ __forceinline__ void store(T* to, const float (&values)[N]) {
  Pack<T, N> pack;
  pack.from(values);
  pack.store(to);
}

template <class T, int N>
__device__ __forceinline__ void add(T* to, const float (&values)[N]) {
  Pack<T, N> pack;
  pack.load(to);
  float sums[N];
  pack.to(sums);
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] += values[i];
  store(to, sums);
}

template <class T, class Into, int N>
__global__ void __launch_bounds__(kThreads)
    sum_tiles(SortedTokens tokens, const T* __restrict__ grad, Into* __restrict__ into, float* __restrict__ partial,
              int64_t rows, int64_t size) {
  __shared__ int32_t ids[kTile + 2];  // the token before the tile, the tile, and the token after it; -1: none
  __shared__ int64_t order[kTile];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile, left = tokens.count - first;
  const int count = static_cast<int>(left < kTile ? left : kTile);
  for (int i = static_cast<int>(threadIdx.x); i < kTile + 2; i += kThreads) {
    const int64_t at = first + i - 1;
    ids[i] = at >= 0 && at < tokens.count ? tokens.ids[at] : -1;
    if (i < count) order[i] = tokens.order[first + i];
  }
  __syncthreads();
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (column >= size) return;

  bool began_here = ids[0] != ids[1];
  float sum[N] = {};
  for (int i = 0; i < count; i += kUnroll) {
    Pack<T, N> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u < count && ids[i + u + 1] >= 0 && ids[i + u + 1] < rows) {
        packs[u].load(grad + order[i + u] * size + column);
      } else {
        packs[u].zero();
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u >= count) break;
      float values[N];
      packs[u].to(values);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += values[n];
      const int32_t id = ids[i + u + 1];
      const bool ends_here = id != ids[i + u + 2];
      if (!ends_here && i + u + 1 < count) continue;
      if (id >= 0 && id < rows) {
        if (!began_here) {
          store(partial + ending_part(blockIdx.x) * size + column, sum);
        } else if (!ends_here) {
          store(partial + beginning_part(blockIdx.x) * size + column, sum);
        } else {
          add(into + id * size + column, sum);
        }
      }
      began_here = true;
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] = 0;
    }
  }
}

/// Sums the parts of a segment, in the order of tiles, in the block of the tile where the segment begins.
template <class Into, int N>
__global__ void __launch_bounds__(kThreads) sum_parts(SortedTokens tokens, const float* __restrict__ partial,
                                                      Into* __restrict__ into, int64_t rows, int64_t size) {
  const int64_t tile = blockIdx.x, first = tile * kTile, next = first + kTile;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (next >= tokens.count || column >= size) return;
  const int32_t id = tokens.ids[next - 1];
  const bool begins_here = first == 0 || tokens.ids[first - 1] != id, continues = tokens.ids[next] == id;
  if (!begins_here || !continues || id < 0 || id >= rows) return;

  float sum[N];
  Pack<float, N> pack;
  pack.load(partial + beginning_part(tile) * size + column);
  pack.to(sum);
  const int64_t tiles = (tokens.count + kTile - 1) / kTile;
  bool more = true;
  for (int64_t other = tile + 1; more; other += kUnroll) {
    Pack<float, N> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      more = other + u < tiles && tokens.ids[(other + u) * kTile] == id;
      if (more) {
        packs[u].load(partial + ending_part(other + u) * size + column);
      } else {
        packs[u].zero();
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float values[N];
      packs[u].to(values);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += values[n];
    }
  }
  add(into + id * size + column, sum);
}

template <class T, class Into, int N>
void launch_both(const SortedTokens& tokens, const T* grad, Into* into, float* partial, int64_t rows, int64_t size,
                 cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(divided_up(tokens.count, kTile)),
                  static_cast<unsigned>(divided_up(size, kThreads * N)));
  launch("embedding_gradient_", sum_tiles<T, Into, N>, grid, kThreads, stream, tokens, grad, into, partial, rows, size);
  launch("embedding_gradient_", sum_parts<Into, N>, grid, kThreads, stream, tokens, partial, into, rows, size);
}

template <class T, class Into>
void launch_aligned(const SortedTokens& tokens, const void* grad, void* into, float* partial, int64_t rows,
                    int64_t size, cudaStream_t stream) {
  const auto with = [&]<int N>() {
    launch_both<T, Into, N>(tokens, static_cast<const T*>(grad), static_cast<Into*>(into), partial, rows, size, stream);
  };
  const bool vectors = size % kVector<T> == 0 && aligned(grad, into, partial);
  return vectors ? with.template operator()<kVector<T>>() : with.template operator()<1>();
}

}  // namespace

int64_t embedding_partial_rows(int64_t tokens) {
  return kParts * divided_up(tokens, kTile);
}

void embedding_gradient(Element element, Element into_element, const SortedTokens& tokens, const void* grad, void* into,
                        float* partial, int64_t rows, int64_t size, cudaStream_t stream) {
  if (tokens.count == 0 || rows == 0 || size == 0) return;
  for_element(element, [&]<class T>() {
    if (into_element == Element::Float) {
      launch_aligned<T, float>(tokens, grad, into, partial, rows, size, stream);
    } else {
      launch_aligned<T, T>(tokens, grad, into, partial, rows, size, stream);
    }
  });
}

}  // namespace meshtrain::cuda
