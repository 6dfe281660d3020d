#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "mesh/device/cuda/device_graph.h"
#include "mesh/device/memory.h"

namespace meshtrain {

/// The interface of libmeshtrain_cuda.so, which has everything that needs CUDA's own libraries. Opening the library
/// registers the CUDA kernels of the meshtrain:: operators; it is never closed.
class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  /// Returns how many GPUs this process may use, one at least. Checks, in this order, that a new enough driver exists,
  /// that GPUs exist, that the kernels were built for their architectures, that LibTorch's CUDA libraries can be
  /// opened, and that no library of CUDA is loaded twice or is older than that of this build. Throws InputError with
  /// one line that names the missing part and the remedy.
  virtual int prepare() = 0;

  /// Sets LibTorch's allocator of GPU memory, "expandable_segments:True,max_split_size_mb:512", instead of those
  /// of PYTORCH_ALLOC_CONF. After prepare(), before use(). Throws InputError for what it does not take.
  virtual void set_allocator(const std::string& settings) = 0;

  /// Makes `gpu` the one that this thread computes on, on a stream that can be recorded. After prepare(). Throws
  /// InputError when it does not work.
  virtual void use(int gpu) = 0;
  /// Returns "NVIDIA H100 80GB HBM3 (sm_90), 79.2 GiB".
  virtual std::string describe(int gpu) const = 0;
  /// Returns the compute capability: 90 for sm_90. Is cheap, since attention calls it every time.
  virtual int architecture(int gpu) const = 0;
  /// Returns a text that no other GPU of the world has.
  virtual std::string identity(int gpu) const = 0;
  virtual DevicePeak peak(int gpu) const = 0;
  /// Returns the bytes that nobody has allocated on the GPU that use() has chosen; 0 when it does not say.
  virtual int64_t free_memory() const = 0;

  /// Pins page-aligned host memory, so that GPUs can copy from and to it while they compute. Call it after use().
  /// Returns the driver's reason for a refusal; empty when the memory is pinned.
  virtual std::string pin(void* memory, size_t bytes) const = 0;
  /// Unpins memory that pin() pinned. Call it when all copies are complete, at any time, even after main() has
  /// returned.
  virtual void unpin(void* memory) const = 0;
  /// Returns the NUMA node of the GPU; -1 when the system does not report it.
  virtual int numa_node(int gpu) const = 0;

  /// Makes a graph on a GPU that use() has chosen.
  virtual std::unique_ptr<DeviceGraph> make_graph(int gpu) const = 0;

  /// Ends the open NVTX range and, unless `name` is empty, begins a range `name`, for Nsight Systems. Costs nothing
  /// without such a tool. Ranges belong to the process, because a backward may run on another thread.
  virtual void show_range(const char* name) = 0;
};

/// Returns true where an NVIDIA driver has left traces: costs nothing, opens nothing. Without a driver no GPU works.
bool is_cuda_driver_there();

/// Returns the plug-in in `folder`, by default that of the running program. Opens it once. Throws InputError, one line,
/// when it does not exist or cannot be opened.
CudaPlugin& open_cuda_plugin(const std::filesystem::path& folder = {});

/// Opens the plug-in and returns its function `name`, for floors above this one. Throws as open_cuda_plugin() does.
void* cuda_plugin_function(const char* name);

}  // namespace meshtrain
