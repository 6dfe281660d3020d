// Functions of the runtime that LibTorch's CUDA library needs and the emulated GPU does not have.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "tests/emulated_gpu/cuda/errors.h"
#include "tests/emulated_gpu/cuda/state.h"

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* run, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(run, graph, flags);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes == nullptr) *count = graph->nodes.size();
  for (size_t i = 0; nodes != nullptr && i < *count; ++i) nodes[i] = graph->nodes[i].get();
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  return tell(try_give(stream, [=] { callback(stream, cudaSuccess, data); }));
}

// Variables of the device: nothing reads them.
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  *address = const_cast<void*>(symbol);
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}

}  // extern "C"
