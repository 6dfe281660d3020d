#include <cuda_runtime_api.h>

#include "errors.h"

// Functions that LibTorch links but the project never calls.

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return tell(cudaErrorPeerAccessUnsupported);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaMallocAsync(void**, size_t, cudaStream_t) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return tell(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return tell(cudaErrorNotSupported);
}

}  // extern "C"
