// The functions besides operators that LibTorch calls in its CUDA library.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <mutex>

// A function of libc10_cuda.so that no header declares.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}  // namespace c10::cuda::_internal

namespace at {
namespace {

// LibTorch's library does this when it is loaded.
[[maybe_unused]] const bool has_told = [] {
  c10::cuda::_internal::setHasPrimaryContext([](DeviceIndex) { return true; });
  return true;
}();

void free_pinned(void* memory) {
  if (memory != nullptr) C10_CUDA_CHECK(cudaFreeHost(memory));
}

// Keeps nothing for reuse: a copy in progress holds its tensors.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0) C10_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
    return {memory, memory, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

// LibTorch finds the hooks by this name.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}

  void init() const override {
    static std::once_flag once;
    std::call_once(once, [] {
      c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count_ensure_non_zero());
      c10::SetAllocator(c10::kCUDA, c10::cuda::CUDACachingAllocator::get());
    });
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::cuda::device_count() > 0; }
  bool hasCUDA() const override { return isAvailable(); }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  DeviceIndex current_device() const override { return c10::cuda::current_device(); }
  DeviceIndex getCurrentDevice() const override { return c10::cuda::current_device(); }
  void setCurrentDevice(DeviceIndex device) const override { c10::cuda::set_device(device); }
  void deviceSynchronize(DeviceIndex) const override { c10::cuda::device_synchronize(); }
  Allocator* getCUDADeviceAllocator() const override { return c10::cuda::CUDACachingAllocator::get(); }
  Allocator* getPinnedMemoryAllocator() const override {
    static auto* const allocator = new PinnedAllocator;
    return allocator;
  }
  bool isPinnedPtr(const void* data) const override {
    cudaPointerAttributes about{};
    return cudaPointerGetAttributes(&about, data) == cudaSuccess && about.type == cudaMemoryTypeHost;
  }
  Device getDeviceFromPtr(void* data) const override {
    cudaPointerAttributes about{};
    C10_CUDA_CHECK(cudaPointerGetAttributes(&about, data));
    return {kCUDA, static_cast<DeviceIndex>(about.device)};
  }
};

REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace at
