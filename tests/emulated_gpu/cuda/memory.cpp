#include "memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "access.h"
#include "devices.h"
#include "errors.h"
#include "model.h"
#include "observer.h"
#include "state.h"

namespace meshtrain::emulated {
namespace {

constexpr size_t kPage = 4096;
constexpr int kNewBytes = 0xff;  // NaN in every floating dtype

struct Range {
  size_t bytes = 0;
  int device = -1;       ///< -1 for host memory
  bool is_ours = false;  ///< true: pinned memory of cudaHostAlloc
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Range> device, pinned;
  size_t taken[64] = {};
};

Memory& memory() {
  static Memory& everything = *new Memory;
  return everything;
}

const Range* find(const std::map<uintptr_t, Range>& ranges, const void* data, size_t bytes,
                  uintptr_t* begin = nullptr) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return nullptr;
  --after;
  if (address + bytes > after->first + after->second.bytes || address >= after->first + after->second.bytes) {
    return nullptr;
  }
  if (begin != nullptr) *begin = after->first;
  return &after->second;
}

size_t full_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Returns true when this process may not pin `bytes` more: MESHTRAIN_EMULATED_PINNED is the number of bytes that it
/// may.
bool is_beyond_limit(size_t bytes) {
  const char* const limit = std::getenv("MESHTRAIN_EMULATED_PINNED");
  if (limit == nullptr) return false;
  const std::lock_guard lock(memory().mutex);
  for (const auto& [address, range] : memory().pinned) bytes += range.bytes;
  return bytes > std::strtoull(limit, nullptr, 10);
}

}  // namespace

int device_of(const void* data, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const Range* const range = find(memory().device, data, bytes);
  return range != nullptr ? range->device : -1;
}

void note_pinned(void* data, size_t bytes, bool is_pinned) {
  const std::lock_guard lock(memory().mutex);
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (is_pinned) {
    memory().pinned[address] = {.bytes = bytes};
  } else {
    memory().pinned.erase(address);
  }
}

bool is_pinned(const void* data, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  return find(memory().pinned, data, bytes) != nullptr;
}

}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (data == nullptr) return tell(cudaErrorInvalidValue);
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  if (device_error() != cudaSuccess) return tell(device_error());
  const int device = use_current_device();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  const size_t size = full_pages(bytes);
  const std::lock_guard lock(memory().mutex);
  size_t& taken = memory().taken[device];
  if (size > model().bytes - taken) return tell(cudaErrorMemoryAllocation);
  void* const pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return tell(cudaErrorMemoryAllocation);
  if (model().computes) std::memset(pages, kNewBytes, size);
  if (protection_key() >= 0) pkey_mprotect(pages, size, PROT_READ | PROT_WRITE, protection_key());
  taken += size;
  observe("allocate", "device " + std::to_string(bytes));
  memory().device[reinterpret_cast<uintptr_t>(pages)] = {.bytes = bytes, .device = device};
  *data = pages;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  use_current_device();
  if (data == nullptr) return tell(device_error());
  if (is_thread_of_stream()) {
    do_later([data] { cudaFree(data); });
    return cudaSuccess;
  }
  const auto address = reinterpret_cast<uintptr_t>(data);
  Range range;
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().device.find(address);
    if (found == memory().device.end()) return refuse(cudaErrorInvalidValue, "cudaFree of what is not allocated");
    range = found->second;
  }
  {
    Lock lock(lock_of_streams());
    wait_for_device(range.device, lock);
  }
  const std::lock_guard lock(memory().mutex);
  if (memory().device.erase(address) == 0) return refuse(cudaErrorInvalidValue, "cudaFree of the same by two threads");
  memory().taken[range.device] -= full_pages(range.bytes);
  munmap(data, full_pages(range.bytes));
  return tell(device_error());
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  const int device = use_current_device();
  const std::lock_guard lock(memory().mutex);
  *free = model().bytes - memory().taken[device];
  *total = model().bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  use_current_device();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* const pages = std::aligned_alloc(kPage, full_pages(bytes));
  if (pages == nullptr) return tell(cudaErrorMemoryAllocation);
  observe("allocate", "pinned " + std::to_string(bytes));
  const std::lock_guard lock(memory().mutex);
  memory().pinned[reinterpret_cast<uintptr_t>(pages)] = {.bytes = bytes, .device = -1, .is_ours = true};
  *data = pages;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return cudaHostAlloc(data, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (is_thread_of_stream()) {
    do_later([data] { cudaFreeHost(data); });
    return cudaSuccess;
  }
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().pinned.find(reinterpret_cast<uintptr_t>(data));
    if (found == memory().pinned.end() || !found->second.is_ours) {
      return refuse(cudaErrorInvalidValue, "cudaFreeHost of what cudaHostAlloc did not give");
    }
  }
  {
    Lock lock(lock_of_streams());
    for (int device = 0; device < device_count(); ++device) wait_for_device(device, lock);
  }
  note_pinned(data, 0, false);  // until here copies from and to it were asynchronous
  std::free(data);
  return tell(device_error());
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  if (data == nullptr || bytes == 0) return tell(cudaErrorInvalidValue);
  if (is_pinned(data, 1)) return tell(cudaErrorHostMemoryAlreadyRegistered);
  if (is_beyond_limit(bytes)) return tell(cudaErrorMemoryAllocation);
  note_pinned(data, bytes, true);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  if (!is_pinned(data, 1)) return tell(cudaErrorHostMemoryNotRegistered);
  note_pinned(data, 0, false);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* about, const void* data) {
  if (about == nullptr) return tell(cudaErrorInvalidValue);
  *about = {};
  about->device = -1;
  about->type = cudaMemoryTypeUnregistered;
  if (const int device = device_of(data, 1); device >= 0) {
    about->type = cudaMemoryTypeDevice;
    about->device = device;
    about->devicePointer = const_cast<void*>(data);
  } else if (is_pinned(data, 1)) {
    about->type = cudaMemoryTypeHost;
    about->device = 0;
    about->devicePointer = about->hostPointer = const_cast<void*>(data);
  } else {
    about->hostPointer = const_cast<void*>(data);
  }
  return cudaSuccess;
}

}  // extern "C"
