// libcuda.so.1, to which LibTorch's library for run-time compilation is linked. Few of its functions are called.
#include <cstddef>

extern "C" {

#define UNSUPPORTED(name) \
  int name() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

UNSUPPORTED(cuDeviceGetAttribute)
UNSUPPORTED(cuFuncGetAttribute)
UNSUPPORTED(cuFuncSetAttribute)
UNSUPPORTED(cuFuncSetCacheConfig)
UNSUPPORTED(cuGetErrorString)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuLaunchKernel)
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuModuleGetFunction)
UNSUPPORTED(cuModuleLoad)
UNSUPPORTED(cuModuleLoadData)
UNSUPPORTED(cuModuleLoadDataEx)
UNSUPPORTED(cuModuleUnload)
UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(cuPointerGetAttribute)
UNSUPPORTED(cuTensorMapEncodeTiled)

int cuInit(unsigned) {
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  static int everything;
  *context = &everything;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  return cuDevicePrimaryCtxRetain(context, 0);
}
int cuCtxSetCurrent(void*) {
  return 0;
}

}  // extern "C"
