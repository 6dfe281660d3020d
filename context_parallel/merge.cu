#include "context_parallel/merge_kernel.h"
#include "mesh/device/cuda/kernel.cuh"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t offset(const QueryStrides& strides, int64_t batch, int64_t head, int64_t query) {
  return batch * strides.batch + head * strides.head + query * strides.query;
}

// The lanes along x, within one warp, share a query: all of them read its log-sum-exp before one writes it. Heads are
// the fastest index of the rows, because they are adjacent in memory.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    merge(float* __restrict__ out, float* __restrict__ lse, const T* __restrict__ part_out,
          const float* __restrict__ part_lse, MergeShape shape) {
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  const int64_t rows_at_once = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < rows; first += rows_at_once) {
    const int64_t row = first + threadIdx.y;
    const bool there = row < rows;
    const int64_t valid_row = there ? row : 0, position = valid_row / shape.heads;
    const int64_t head = valid_row - position * shape.heads, batch = position / shape.queries;
    const int64_t query = position - batch * shape.queries;
    float* own = lse + offset(shape.lse, batch, head, query);
    const float before = *own, added = part_lse[offset(shape.part_lse, batch, head, query)];
    const float share = 1.0f / (1.0f + expf(before - added));
    __syncwarp();
    if (!there) continue;
    if (threadIdx.x == 0) {
      const float larger = fmaxf(before, added);
      // The difference of equal infinities is not a number.
      *own = before == added && isinf(before) ? before : larger + log1pf(expf(-fabsf(before - added)));
    }
    float* to = out + offset(shape.out, batch, head, query);
    const T* from = part_out + offset(shape.part_out, batch, head, query);
    for (int64_t column = threadIdx.x * N; column < shape.head_dim; column += static_cast<int64_t>(blockDim.x) * N) {
      Pack<float, N> out_pack;
      Pack<T, N> part_pack;
      out_pack.load(to + column);
      part_pack.load(from + column);
      float values[N], others[N];
      out_pack.to(values);
      part_pack.to(others);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += share * (others[i] - values[i]);
      out_pack.from(values);
      out_pack.store(to + column);
    }
  }
}

bool multiples(int64_t of, const QueryStrides& strides) {
  return strides.batch % of == 0 && strides.head % of == 0 && strides.query % of == 0;
}

}  // namespace

void merge_attention(Element element, float* out, float* lse, const void* part_out, const float* part_lse,
                     const MergeShape& shape, cudaStream_t stream) {
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  if (rows == 0) return;
  for_element(element, [&]<class T>() {
    const auto with = [&](auto kernel, int vector) {
      const int columns = std::min(kWarp, power_of_two_from(divided_up(shape.head_dim, vector)));
      const dim3 block(columns, kThreads / columns);
      launch("merge_attention_", kernel, grid_for(divided_up(rows, block.y), 32), block, stream, out, lse,
             static_cast<const T*>(part_out), part_lse, shape);
    };
    constexpr int kN = 4;
    const bool vectors = shape.head_dim % kVector<T> == 0 && multiples(kVector<T>, shape.out) &&
                         multiples(kVector<T>, shape.part_out) && aligned(out, part_out);
    vectors ? with(merge<T, kN>, kN) : with(merge<T, 1>, 1);
  });
}

}  // namespace meshtrain::cuda
