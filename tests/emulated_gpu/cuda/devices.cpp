#include "devices.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "model.h"

namespace meshtrain::emulated {
namespace {

constexpr int kMostDevices = 64;

thread_local int current = 0;
std::atomic<bool> in_use[kMostDevices];

/// Returns the machine's GPUs that the process sees, according to CUDA_VISIBLE_DEVICES.
std::vector<int> find_devices() {
  const char* const asked = std::getenv("MESHTRAIN_EMULATED_GPUS");
  const int count = std::min(asked != nullptr ? std::atoi(asked) : 1, kMostDevices);
  std::vector<int> devices;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int device = 0; device < count; ++device) devices.push_back(device);
    return devices;
  }
  for (;;) {  // entries after the first that is not a GPU are ignored
    char* end = nullptr;
    const long device = std::strtol(visible, &end, 10);
    if (end == visible || device < 0 || device >= count) return devices;
    devices.push_back(static_cast<int>(device));
    if (*end != ',') return devices;
    visible = end + 1;
  }
}

const std::vector<int>& devices() {
  static const std::vector<int> found = find_devices();
  return found;
}

/// Returns the compute capability of all GPUs: 90 for sm_90.
int architecture() {
  const char* const asked = std::getenv("MESHTRAIN_EMULATED_ARCHITECTURE");
  return asked != nullptr ? std::atoi(asked) : 90;
}

/// Returns an id made of the machine and the device's number on it.
cudaUUID_t uuid_of(int device) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  uint64_t hash = 14695981039346656037u;
  for (const char c : std::string(host) + "#" + std::to_string(device)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  cudaUUID_t uuid{};
  std::memcpy(uuid.bytes, "EMULATED", 8);
  std::memcpy(uuid.bytes + 8, &hash, sizeof hash);
  return uuid;
}

cudaError_t check(int device) {
  if (devices().empty()) return cudaErrorNoDevice;
  return device < 0 || device >= device_count() ? cudaErrorInvalidDevice : cudaSuccess;
}

}  // namespace

int device_count() {
  return static_cast<int>(devices().size());
}

int use_current_device() {
  in_use[current] = true;
  return current;
}

bool is_in_use(int device) {
  return in_use[device];
}

}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return tell(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t error = check(0); error != cudaSuccess) return tell(error);
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = check(device); error != cudaSuccess) return tell(error);
  current = device;
  use_current_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int device) {
  if (const cudaError_t error = check(device); error != cudaSuccess) return tell(error);
  *about = {};
  std::snprintf(about->name, sizeof about->name, "%s", model().name);
  about->uuid = uuid_of(devices()[static_cast<size_t>(device)]);
  about->totalGlobalMem = model().bytes;
  about->major = architecture() / 10;
  about->minor = architecture() % 10;
  about->multiProcessorCount = model().multiprocessors;
  about->warpSize = 32;
  about->maxThreadsPerBlock = 1024;
  about->maxThreadsPerMultiProcessor = 2048;
  about->maxBlocksPerMultiProcessor = 32;
  for (int axis = 0; axis < 3; ++axis) {
    about->maxThreadsDim[axis] = axis < 2 ? 1024 : 64;
    about->maxGridSize[axis] = axis == 0 ? 2147483647 : 65535;
  }
  about->sharedMemPerBlock = 48 << 10;
  about->sharedMemPerBlockOptin = 227 << 10;
  about->sharedMemPerMultiprocessor = 228 << 10;
  about->regsPerBlock = about->regsPerMultiprocessor = 65536;
  about->totalConstMem = 64 << 10;
  about->l2CacheSize = 50 << 20;
  about->textureAlignment = 512;
  about->memPitch = 2147483647;
  about->concurrentKernels = 1;
  about->unifiedAddressing = 1;
  about->canMapHostMemory = 1;
  about->streamPrioritiesSupported = 1;
  about->asyncEngineCount = 3;
  about->pciBusID = devices()[static_cast<size_t>(device)] + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp about;
  if (const cudaError_t error = cudaGetDeviceProperties(&about, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = about.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = about.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = about.minor;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = about.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(about.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(about.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(about.sharedMemPerMultiprocessor);
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = about.maxThreadsPerMultiProcessor;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = about.warpSize;
      return cudaSuccess;
    case cudaDevAttrHostNumaId:
      *value = -1;
      return cudaSuccess;
    default:
      return refuse(cudaErrorInvalidValue, "attribute " + std::to_string(attribute) + " is not emulated");
  }
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

}  // extern "C"
