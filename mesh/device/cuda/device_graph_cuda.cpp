#include "mesh/device/cuda/device_graph_cuda.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace meshtrain::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which is reported here
  throw std::runtime_error(std::string("CUDA graph: ") + what + ": " + cudaGetErrorString(error));
}

c10::MempoolId_t fresh_pool() {
  static std::atomic<c10::CaptureId_t> last = 0;
  return {++last, 0};
}

/// A guard under which recording threads allocate from the pool.
class PoolGuard {
 public:
  PoolGuard(c10::DeviceIndex gpu, c10::MempoolId_t pool) : gpu_(gpu), pool_(pool) {
    allocator::beginAllocateToPool(gpu, pool, is_captured);
  }
  ~PoolGuard() { allocator::endAllocateToPool(gpu_, pool_); }
  PoolGuard(const PoolGuard&) = delete;
  PoolGuard& operator=(const PoolGuard&) = delete;

 private:
  c10::DeviceIndex gpu_;
  c10::MempoolId_t pool_;
};

class Graph final : public DeviceGraph {
 public:
  explicit Graph(int gpu) : gpu_(static_cast<c10::DeviceIndex>(gpu)) {}

  ~Graph() override {
    if (!has_pool_) return;
    const c10::cuda::CUDAGuard guard(gpu_);
    if (run_ != nullptr) {
      cudaDeviceSynchronize();  // it may still run
      cudaGraphExecDestroy(run_);
    }
    allocator::releasePool(gpu_, pool_);
  }

  void record(const std::function<void()>& work) override {
    if (has_pool_) throw std::logic_error("a graph can be recorded only once");
    const c10::cuda::CUDAGuard guard(gpu_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(gpu_).stream();
    check(cudaStreamSynchronize(stream), "the work before it");
    allocator::emptyCache();  // the graph will have memory of its own for what used it so far
    cudaGraph_t graph = nullptr;
    {
      const PoolGuard from_pool(gpu_, pool_);
      has_pool_ = true;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      try {
        work();
      } catch (...) {
        cudaStreamEndCapture(stream, &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        cudaGetLastError();
        throw;
      }
      check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    }
    const cudaError_t error = cudaGraphInstantiate(&run_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiate");
  }

  void replay() override {
    check(cudaGraphLaunch(run_, c10::cuda::getCurrentCUDAStream(gpu_).stream()), "cudaGraphLaunch");
  }

 private:
  c10::DeviceIndex gpu_;
  c10::MempoolId_t pool_ = fresh_pool();
  bool has_pool_ = false;  // the allocator keeps it until it is released
  cudaGraphExec_t run_ = nullptr;
};

}  // namespace

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

std::unique_ptr<DeviceGraph> make_graph(int gpu) {
  if (gpu < 0) {
    throw std::invalid_argument("CUDA graph: a GPU's number is 0 or more, not " + std::to_string(gpu) +
                                ": give a device with an index");
  }
  return std::make_unique<Graph>(gpu);
}

}  // namespace meshtrain::cuda
