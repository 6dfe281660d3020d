#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "devices.h"

// The few functions of the driver that LibTorch looks up by name. Others exist and return errors.
namespace meshtrain::emulated {
namespace {

CUresult CUDAAPI get_error_string(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS                ? "no error"
          : error == CUDA_ERROR_NOT_SUPPORTED  ? "operation not supported"
          : error == CUDA_ERROR_INVALID_DEVICE ? "invalid device ordinal"
                                               : "error of the driver";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI primary_context_state(CUdevice device, unsigned* flags, int* is_active) {
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *is_active = is_in_use(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI not_supported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace
}  // namespace meshtrain::emulated

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                                        unsigned long long, cudaDriverEntryPointQueryResult* result) {
  using namespace meshtrain::emulated;
  if (std::strcmp(symbol, "cuGetErrorString") == 0) {
    *function = reinterpret_cast<void*>(&get_error_string);
  } else if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0) {
    *function = reinterpret_cast<void*>(&primary_context_state);
  } else {
    *function = reinterpret_cast<void*>(&not_supported);
  }
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
