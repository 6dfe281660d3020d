#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>

#include "mesh/base/error.h"
#include "mesh/device/cuda/checks.h"
#include "mesh/device/cuda/device_graph_cuda.h"
#include "mesh/device/cuda/libraries.h"
#include "mesh/device/cuda/plugin.h"

namespace meshtrain {
namespace {

[[noreturn]] void refuse(const std::string& problem, const std::string& remedy) {
  throw CudaUnavailable(problem, remedy);
}

/// "13.0" of 13000.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// "2.28.9" of 22809.
std::string nccl_version(int number) {
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
}

void check_driver() {
  int driver = 0;
  const cudaError_t error = cudaDriverGetVersion(&driver);
  if (error != cudaSuccess || driver == 0) {
    refuse("this machine has no NVIDIA driver (libcuda.so.1 is not found)",
           "install one for CUDA " + cuda_version(CUDART_VERSION) + " or later");
  }
  if (driver / 1000 < CUDART_VERSION / 1000) {
    refuse("the NVIDIA driver is too old: it is for CUDA " + cuda_version(driver),
           "install one for CUDA " + cuda_version(CUDART_VERSION / 1000 * 1000) + " or later");
  }
}

int count_gpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    refuse("the driver finds no GPU" +
               (visible != nullptr ? " (CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "')" : std::string()),
           "start on a machine with one, or make it visible");
  }
  if (error != cudaSuccess) {
    refuse(std::string("the driver does not answer: ") + cudaGetErrorString(error), "see nvidia-smi");
  }
  return count;
}

void check_architectures(int count) {
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaDeviceProp about{};
    const cudaError_t error = cudaGetDeviceProperties(&about, gpu);
    if (error != cudaSuccess) {
      refuse("GPU " + std::to_string(gpu) + " does not answer: " + cudaGetErrorString(error), "see nvidia-smi");
    }
    if (runs_on(MESHTRAIN_CUDA_ARCHITECTURES, about.major, about.minor)) continue;
    const std::string number = std::to_string(10 * about.major + about.minor);
    refuse("GPU " + std::to_string(gpu) + ", " + about.name + ", has architecture " + number +
               ", but the kernels are built for " MESHTRAIN_CUDA_ARCHITECTURES,
           "configure with -DMESHTRAIN_CUDA_ARCHITECTURES=" + number + " and build again");
  }
}

void check_libraries() {
  for (const char* library : {"libcudart.so", "libnccl.so", "libc10_cuda.so", "libtorch_cuda.so"}) {
    std::ifstream maps("/proc/self/maps");
    const std::vector<std::string> files = mapped_files(maps, library);
    if (files.size() < 2) continue;
    refuse(std::string(library) + " is loaded twice, from " + files[0] + " and " + files[1],
           "leave one of them out of LD_LIBRARY_PATH and LD_PRELOAD");
  }
  int runtime = 0, nccl = 0;
  cudaRuntimeGetVersion(&runtime);
  if (runtime / 1000 != CUDART_VERSION / 1000) {
    refuse("libcudart is from CUDA " + cuda_version(runtime) + ", but meshtrain was built with " +
               cuda_version(CUDART_VERSION),
           "build with nvcc of that version, or change LD_LIBRARY_PATH");
  }
  ncclGetVersion(&nccl);
  if (nccl < NCCL_VERSION_CODE) {
    refuse("libnccl is " + nccl_version(nccl) + ", but meshtrain was built with " + nccl_version(NCCL_VERSION_CODE),
           "build again with that version, or change LD_LIBRARY_PATH");
  }
}

class Plugin final : public CudaPlugin {
 public:
  int prepare() override {
    if (count_ > 0) return count_;
    // One thread issues all collectives, in one order on all ranks: NCCL may rely on it.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
    // Streams of which two share a hardware queue wait for each other. By default there are 8 queues; 32 are the most.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    check_driver();
    const int count = count_gpus();
    check_architectures(count);
    const std::filesystem::path libtorch = libtorch_folder();
    open_runtime_compiler(libtorch, CUDART_VERSION / 1000);
    open_torch_cuda(libtorch);  // nothing may ask LibTorch about CUDA before this
    check_libraries();
    return count_ = count;
  }

  void set_allocator(const std::string& settings) override {
    try {
      c10::CachingAllocator::setAllocatorSettings(settings);
    } catch (const c10::Error& error) {
      throw InputError("train.cuda_allocator",
                       "LibTorch does not accept '" + settings + "': " + error.what_without_backtrace());
    }
  }

  void use(int gpu) override {
    cudaError_t error = cudaSetDevice(gpu);
    if (error == cudaSuccess) error = cudaFree(nullptr);  // makes what a first allocation would
    if (error != cudaSuccess) {
      refuse("GPU " + std::to_string(gpu) + " cannot be used: " + cudaGetErrorString(error), "see nvidia-smi");
    }
    at::globalContext().lazyInitDevice(at::kCUDA);
    // Products of halves may be cut along their sums; the parts are then added in fp32, not in the half.
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    at::globalContext().setAllowFP16ReductionCuBLAS(false);
    c10::cuda::setCurrentCUDAStream(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, static_cast<c10::DeviceIndex>(gpu)));
  }

  std::string describe(int gpu) const override {
    cudaDeviceProp about{};
    if (cudaGetDeviceProperties(&about, gpu) != cudaSuccess) return "GPU " + std::to_string(gpu);
    char memory[32];
    std::snprintf(memory, sizeof memory, "%.1f GiB", static_cast<double>(about.totalGlobalMem) / (1 << 30));
    return std::string(about.name) + " (sm_" + std::to_string(10 * about.major + about.minor) + "), " + memory;
  }

  int architecture(int gpu) const override {
    int major = 0, minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
    if (error != cudaSuccess) {
      throw std::runtime_error("cannot read the compute capability of GPU " + std::to_string(gpu) + ": " +
                               cudaGetErrorString(error));
    }
    return 10 * major + minor;
  }

  std::string identity(int gpu) const override {
    cudaDeviceProp about{};
    if (cudaGetDeviceProperties(&about, gpu) != cudaSuccess) return "";
    std::string text;
    for (const char byte : about.uuid.bytes) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      text += digits;
    }
    return text;
  }

  DevicePeak peak(int gpu) const override {
    namespace allocator = c10::cuda::CUDACachingAllocator;
    const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(gpu));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return {stats.allocated_bytes[all].peak, stats.reserved_bytes[all].peak};
  }

  int64_t free_memory() const override {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
  }

  std::string pin(void* memory, size_t bytes) const override {
    const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    if (error == cudaSuccess) return "";
    cudaGetLastError();  // clears the error, which is returned here
    return cudaGetErrorString(error);
  }

  void unpin(void* memory) const override {
    // Fails after the driver has shut down, which has unpinned all memory.
    if (cudaDeviceSynchronize() != cudaSuccess || cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
  }

  int numa_node(int gpu) const override {
    int node = -1;
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, gpu) == cudaSuccess) return node;
    cudaGetLastError();
    return -1;
  }

  std::unique_ptr<DeviceGraph> make_graph(int gpu) const override { return cuda::make_graph(gpu); }

  void show_range(const char* name) override {
    const std::lock_guard lock(mutex_);
    if (range_) nvtxRangeEnd(*range_);
    range_ = *name == '\0' ? std::nullopt : std::optional(nvtxRangeStartA(name));
  }

 private:
  int count_ = 0;
  std::mutex mutex_;  // guards range_
  std::optional<nvtxRangeId_t> range_;
};

}  // namespace
}  // namespace meshtrain

extern "C" meshtrain::CudaPlugin* meshtrain_cuda_plugin() {
  static meshtrain::Plugin plugin;
  return &plugin;
}
