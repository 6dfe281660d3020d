// Reports on stderr how many hardware queues CUDA is asked for when a program calls it first. Loaded by LD_PRELOAD: its
// cudaDriverGetVersion comes before that of CUDA's runtime.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

extern "C" cudaError_t cudaDriverGetVersion(int* version) {
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::fprintf(stderr, "CUDA is asked for %s hardware queues\n", queues != nullptr ? queues : "its default of");
  return reinterpret_cast<cudaError_t (*)(int*)>(dlsym(RTLD_NEXT, "cudaDriverGetVersion"))(version);
}
