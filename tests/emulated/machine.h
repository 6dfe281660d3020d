#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

// What stands for a GPU: the threads of a block are fibers of one thread of the CPU, blocks run one after another. A
// thread runs alone until it waits for others or leaves. A warp runs until all of it waits for the block or has left,
// then comes the next one. So between two barriers any two warps run in either order when Order is Forward and
// Backward, and so do any two lanes between two meetings of their warp: where the order has a say in the results, a
// barrier is missing.

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Of the thread that runs.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace meshtrain::emulated {

/// Of the blocks of a grid, the warps of a block and the lanes of a warp.
enum class Order { Forward, Backward, Shuffled };

/// For the kernels that follow; `seed`: of what is shuffled.
void set_order(Order order, uint64_t seed = 0);

/// What a kernel may not do: which block, which thread, what it did.
class Error : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Calls `thread` for every thread of the grid. `kernel`: the function it calls, for its __launch_bounds__. Before each
/// block all of shared memory is set to NaNs. Throws Error: for a size that CUDA refuses; when threads wait for some
/// that have left, that wait for something else or that are not there; for a word that is misaligned.
void run(const void* kernel, dim3 grid, dim3 block, const std::function<void()>& thread);

// For threads.

/// Waits for all threads of the block, at this place.
void meet_block(const std::source_location& where);
/// Waits for the lanes of `mask`.
void meet_warp(unsigned mask, const std::source_location& where);
/// So too; returns the `bits` of lane `from`, one of them.
uint64_t exchange(unsigned mask, uint64_t bits, unsigned from, const std::source_location& where);
/// The place of the thread in its warp.
unsigned lane();
/// Ends the launch.
[[noreturn]] void misaligned(uintptr_t address, size_t bytes);

/// Memory is read and written in words at their multiples.
inline void check_aligned(const void* word, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(word);
  asm("" : "+r"(address));  // its type lets the compiler believe that it is one
  if (address % bytes != 0) misaligned(address, bytes);
}

}  // namespace meshtrain::emulated
