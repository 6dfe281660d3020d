#include "mesh/device/cuda/plugin.h"

#include <dlfcn.h>

#include <mutex>
#include <system_error>

#include "mesh/device/cuda/checks.h"

namespace meshtrain {
namespace {

constexpr const char* kFile = "libmeshtrain_cuda.so";

void* opened = nullptr;  // the library

void* function_of_library(const char* name) {
  void* const found = dlsym(opened, name);
  if (found == nullptr) throw CudaUnavailable(std::string(kFile) + " is of another version", "build again");
  return found;
}

/// A library's constructors run once, and there is one dispatcher: for good, whatever becomes of the caller.
CudaPlugin& open(const std::filesystem::path& file) {
  std::error_code unreadable;
  if (!std::filesystem::exists(file, unreadable)) {
#ifdef MESHTRAIN_BUILDS_CUDA
    const char* const advice = "run tools/build release meshtrain_cuda, which builds it";
#else
    const char* const advice =
        "build where nvcc of CUDA 13 is found (build/release/configure.log says why it was left out)";
#endif
    throw CudaUnavailable(std::string(kFile) + " is not in " + file.parent_path().string(), advice);
  }
  opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const problem = dlerror();
    throw CudaUnavailable(
        std::string(kFile) + " cannot be opened: " + (problem != nullptr ? problem : "no reason given"),
        "run tools/setup --cuda and build again");
  }
  return *reinterpret_cast<CudaPlugin* (*)()>(function_of_library("meshtrain_cuda_plugin"))();
}

}  // namespace

bool is_cuda_driver_there() {
  std::error_code unreadable;
  for (const char* trace :
       {"/dev/nvidiactl", "/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1", "/dev/nvgpu"}) {
    if (std::filesystem::exists(trace, unreadable)) return true;
  }
  return false;
}

CudaPlugin& open_cuda_plugin(const std::filesystem::path& folder) {
  static std::mutex mutex;
  static CudaPlugin* plugin = nullptr;
  const std::lock_guard lock(mutex);
  if (plugin == nullptr) {
    std::error_code unreadable;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
    plugin = &open((folder.empty() ? program.parent_path() : folder) / kFile);
  }
  return *plugin;
}

void* cuda_plugin_function(const char* name) {
  open_cuda_plugin();
  return function_of_library(name);
}

}  // namespace meshtrain
