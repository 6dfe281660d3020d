#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

// An emulated GPU: the threads of a block are fibers of one thread of the CPU, and blocks run one after another. A
// thread runs alone until it waits for others or leaves. A warp runs until all of it waits for the block or has left,
// then the next warp runs. So with Order Forward and Backward any two warps run in both orders between two barriers,
// and so do any two lanes between two meetings of their warp. If the order changes the results, a barrier is missing.

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Indices of the running thread.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace meshtrain::emulated {

/// The order of the blocks of a grid, the warps of a block and the lanes of a warp.
enum class Order { Forward, Backward, Shuffled };

/// Sets the order for later kernels; `seed`: of Shuffled.
void set_order(Order order, uint64_t seed = 0);

/// An error of a kernel: which block, which thread, and what it did.
class Error : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Calls `thread` for every thread of the grid. `kernel`: the function it calls, for its __launch_bounds__. Sets all
/// shared memory to NaNs before each block. Throws Error for a size that CUDA refuses, for threads that wait for others
/// which have left, wait for something else or do not exist, and for a misaligned word.
void run(const void* kernel, dim3 grid, dim3 block, const std::function<void()>& thread);

// Functions for threads.

/// Waits for all threads of the block, at this line of the kernel.
void meet_block(const std::source_location& where);
/// Waits for the lanes of `mask`.
void meet_warp(unsigned mask, const std::source_location& where);
/// Waits for the lanes of `mask` and returns the `bits` of lane `from`, one of them.
uint64_t exchange(unsigned mask, uint64_t bits, unsigned from, const std::source_location& where);
/// Returns the thread's index in its warp.
unsigned lane();
/// Ends the launch.
[[noreturn]] void misaligned(uintptr_t address, size_t bytes);

/// Ends the launch unless `word` is aligned to `bytes`.
inline void check_aligned(const void* word, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(word);
  asm("" : "+r"(address));  // otherwise the compiler assumes alignment from its type
  if (address % bytes != 0) misaligned(address, bytes);
}

}  // namespace meshtrain::emulated
