#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "mesh/backend.h"
#include "mesh/backends/nccl/nccl.h"
#include "mesh/cuda/device_graph.h"

namespace meshtrain {

/// What libmeshtrain_cuda.so gives to the program that opens it: everything that needs CUDA's own libraries. Opening it
/// registers the CUDA kernels of the meshtrain:: operators; it is never closed.
class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  /// How many GPUs this process may use, one at least. Looks, in this order, for a driver, new enough; GPUs; that their
  /// architectures are those that the kernels were built for; LibTorch's CUDA libraries, which it opens; and that no
  /// library of CUDA is there twice or older than what this was built with. Throws InputError, one line: what is
  /// missing and what to do.
  virtual int prepare() = 0;

  /// Settings of LibTorch's allocator of GPU memory, "expandable_segments:True,max_split_size_mb:512", instead of those
  /// of PYTORCH_ALLOC_CONF. After prepare(), before use(). Throws InputError for what it does not take.
  virtual void set_allocator(const std::string& settings) = 0;

  /// Makes `gpu` the one that this thread computes on, on a stream that can be recorded. After prepare(). Throws
  /// InputError when it does not work.
  virtual void use(int gpu) = 0;
  /// "NVIDIA H100 80GB HBM3 (sm_90), 79.2 GiB".
  virtual std::string describe(int gpu) const = 0;
  /// Another one for each GPU of the world.
  virtual std::string identity(int gpu) const = 0;
  /// The most bytes that this process's tensors have taken on it, as LibTorch's allocator counts them.
  virtual int64_t peak_bytes(int gpu) const = 0;

  /// On a GPU that is used.
  virtual std::unique_ptr<DeviceGraph> make_graph(int gpu) const = 0;

  /// NCCL between the ranks of `host`, each with a GPU of its own, which it uses already (nccl_backend()). Collective.
  virtual std::shared_ptr<Backend> nccl(std::shared_ptr<Backend> host, const NcclOptions& options) = 0;
};

/// True where there are traces of an NVIDIA driver: costs nothing, opens nothing. Without it no GPU can be used.
bool is_cuda_driver_there();

/// The plug-in in `folder`, by default that of the running program. Opened once. Throws InputError, one line, when it
/// is not there or cannot be opened.
CudaPlugin& open_cuda_plugin(const std::filesystem::path& folder = {});

}  // namespace meshtrain
