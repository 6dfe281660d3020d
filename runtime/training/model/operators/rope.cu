#include "mesh/device/cuda/kernel.cuh"
#include "runtime/training/model/operators/rope_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 256;

// A thread rotates the same features by the same angles in all heads of a position. x and out may be the same memory:
// each element is read by the thread that writes it, before, and by no other.
template <class T, int N>
__global__ void __launch_bounds__(kThreads, 4)
    rotation(const T* x, const T* __restrict__ cos, const T* __restrict__ sin, T* out, RopeShape shape, float sign) {
  const int64_t column = static_cast<int64_t>(threadIdx.x) * N, step = static_cast<int64_t>(blockDim.x) * N;
  const int64_t positions = shape.batch * shape.positions;
  for (int64_t index = blockIdx.x; index < positions; index += gridDim.x) {
    const int64_t row = index / shape.positions, position = index - row * shape.positions;
    const T* from = x + row * shape.x.batch + position * shape.x.position;
    T* to = out + row * shape.out.batch + position * shape.out.position;
    const int64_t angles = row * shape.angle_batch + position * shape.angle_position;
    for (int64_t i = column; i < shape.half; i += step) {
      Pack<T, N> cosines, sines;
      cosines.load(cos + angles + i);
      sines.load(sin + angles + i);
#pragma unroll 1
      for (int64_t head = threadIdx.y; head < shape.heads; head += blockDim.y) {
        Pack<T, N> first_pack, second_pack;
        first_pack.load(from + head * shape.x.head + i);
        second_pack.load(from + head * shape.x.head + shape.half + i);
        float first[N], second[N], c[N], s[N];
        first_pack.to(first);
        second_pack.to(second);
        cosines.to(c);
        sines.to(s);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float before = first[j];
          s[j] *= sign;
          first[j] = before * c[j] - second[j] * s[j];
          second[j] = second[j] * c[j] + before * s[j];
        }
        first_pack.from(first);
        second_pack.from(second);
        first_pack.store(to + head * shape.out.head + i);
        second_pack.store(to + head * shape.out.head + shape.half + i);
      }
    }
  }
}

template <class... Numbers>
bool multiples(int64_t of, Numbers... numbers) {
  return ((numbers % of == 0) && ...);
}

}  // namespace

void rotate(Element element, const void* x, const void* cos, const void* sin, void* out, const RopeShape& shape,
            bool back, cudaStream_t stream) {
  const int64_t positions = shape.batch * shape.positions;
  if (positions == 0 || shape.heads == 0 || shape.half == 0) return;
  for_element(element, [&]<class T>() {
    const auto with = [&](auto kernel, int vector) {
      const int columns = std::min(kThreads, power_of_two_from(divided_up(shape.half, vector)));
      const int rows = static_cast<int>(std::min<int64_t>(kThreads / columns, shape.heads));
      const int64_t blocks = std::max<int64_t>(1, 4096 / (columns * rows));
      launch("rotate", kernel, grid_for(positions, blocks), dim3(columns, rows), stream, static_cast<const T*>(x),
             static_cast<const T*>(cos), static_cast<const T*>(sin), static_cast<T*>(out), shape, back ? -1.0f : 1.0f);
    };
    constexpr int kN = kVector<T>;
    const bool vectors = multiples(kN, shape.half, shape.x.batch, shape.x.position, shape.x.head, shape.out.batch,
                                   shape.out.position, shape.out.head, shape.angle_batch, shape.angle_position) &&
                         aligned(x, cos, sin, out);
    vectors ? with(rotation<T, kN>, kN) : with(rotation<T, 1>, 1);
  });
}

}  // namespace meshtrain::cuda
