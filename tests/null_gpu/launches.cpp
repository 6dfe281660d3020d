// Launches: checked against the limits of CUDA and of the kernel, and added to the stream as work that does nothing.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/emulated_gpu/cuda/errors.h"
#include "tests/null_gpu/kernels.h"
#include "tests/null_gpu/log.h"
#include "tests/null_gpu/work.h"

namespace meshtrain::null_gpu {
namespace {

constexpr unsigned kMostThreads = 1024, kMostInZ = 64, kMostBlocksInX = 2147483647, kMostBlocks = 65535;
constexpr int kMostShared = 227 << 10, kMostRegisters = 65536;

struct Launch {
  dim3 grid, block;
  size_t shared;
};

std::string text(const dim3& size) {
  return std::to_string(size.x) + "," + std::to_string(size.y) + "," + std::to_string(size.z);
}

/// Returns what is wrong with the sizes of a launch; empty when nothing is.
std::string size_fault(const Kernel& kernel, const Launch& launch) {
  const auto& [grid, block, shared] = launch;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return "an empty grid";
  if (grid.x > kMostBlocksInX || grid.y > kMostBlocks || grid.z > kMostBlocks) return "a grid beyond CUDA's limits";
  if (threads == 0) return "an empty block";
  if (threads > kMostThreads || block.z > kMostInZ) return "a block beyond CUDA's limits";
  if (threads > static_cast<uint64_t>(kernel.max_threads)) {
    return "a block of " + std::to_string(threads) + " threads, where its __launch_bounds__ are " +
           std::to_string(kernel.max_threads);
  }
  if (threads * static_cast<uint64_t>(kernel.registers) > kMostRegisters) return "too many registers for a block";
  if (shared > static_cast<size_t>(kernel.dynamic_bytes)) {
    return std::to_string(shared) + " bytes of dynamic shared memory, where " + std::to_string(kernel.dynamic_bytes) +
           " were allowed";
  }
  if (shared + static_cast<size_t>(kernel.shared_bytes) > kMostShared) return "too much shared memory for a block";
  return {};
}

/// Returns what is wrong with the pointers of a launch; empty when nothing is.
std::string pointer_fault(const Kernel& kernel, void** arguments) {
  for (const auto& [index, alignment] : kernel.pointers) {
    const void* const pointer = *static_cast<void**>(arguments[index]);
    if (pointer == nullptr) continue;  // an optional argument
    const std::string which = "parameter " + std::to_string(index);
    if (const std::string wrong = memory_fault(pointer, 1, alignment); !wrong.empty()) return which + " is " + wrong;
  }
  return {};
}

cudaError_t launch(const void* function, const Launch& sizes, void** arguments, cudaStream_t stream) {
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) {
    refuse("a launch of a kernel that is not registered");
    return emulated::tell(cudaErrorInvalidDeviceFunction);
  }
  std::string wrong = size_fault(*kernel, sizes);
  if (wrong.empty()) wrong = pointer_fault(*kernel, arguments);
  const std::string line =
      kernel->name + " <<<" + text(sizes.grid) + " " + text(sizes.block) + " " + std::to_string(sizes.shared) + ">>>";
  if (!wrong.empty()) {
    refuse("invalid launch: " + wrong + ": " + line);
    return emulated::tell(cudaErrorInvalidConfiguration);
  }
  return give(stream, "launch", line);
}

}  // namespace
}  // namespace meshtrain::null_gpu

using namespace meshtrain::null_gpu;

extern "C" {

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return launch(function, {grid, block, shared}, arguments, stream);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, {grid, block, shared}, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, {config->gridDim, config->blockDim, config->dynamicSmemBytes}, arguments, config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* about, const void* function) {
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) return meshtrain::emulated::tell(cudaErrorInvalidDeviceFunction);
  *about = {};
  about->maxThreadsPerBlock = kernel->max_threads;
  about->numRegs = kernel->registers;
  about->sharedSizeBytes = static_cast<size_t>(kernel->shared_bytes);
  about->maxDynamicSharedSizeBytes = kernel->dynamic_bytes;
  about->ptxVersion = about->binaryVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) return meshtrain::emulated::tell(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value + kernel->shared_bytes > kMostShared) {
    refuse(std::to_string(value) + " bytes of dynamic shared memory are asked for: " + kernel->name);
    return meshtrain::emulated::tell(cudaErrorInvalidValue);
  }
  kernel->dynamic_bytes = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   size_t shared, unsigned) {
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr || threads <= 0) return meshtrain::emulated::tell(cudaErrorInvalidValue);
  const int bytes = static_cast<int>(shared) + kernel->shared_bytes;
  *blocks = std::min(2048 / threads, bytes > 0 ? kMostShared / bytes : 32);
  if (kernel->registers > 0) *blocks = std::min(*blocks, kMostRegisters / (threads * kernel->registers));
  return cudaSuccess;
}

}  // extern "C"
