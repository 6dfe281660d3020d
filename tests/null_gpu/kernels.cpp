// The kernels that libraries register when the process loads them.
#include "tests/null_gpu/kernels.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <fatbinary_section.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tests/null_gpu/fat_binary.h"
#include "tests/null_gpu/parameters.h"

namespace meshtrain::null_gpu {
namespace {

constexpr int kWithoutAsking = 48 << 10;  // shared memory of a block whose kernel has not asked for more
constexpr int kReserved = 1 << 10;        // static shared memory that CUDA takes for itself in each block

struct Registered {
  std::string symbol;
  FatBinary* binary;
  std::unique_ptr<Kernel> kernel;  ///< made when it is first asked for
};

struct All {
  std::mutex mutex;
  std::unordered_map<const void*, Registered> functions;
};

All& all() {
  static All& everything = *new All;
  return everything;
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return name ? name.get() : symbol;
}

Kernel make(const Registered& of) {
  Kernel kernel;
  kernel.name = demangled(of.symbol);
  kernel.pointers = pointer_parameters(kernel.name);
  if (const std::optional<KernelResources> resources = of.binary->resources(of.symbol)) {
    if (resources->max_threads > 0) kernel.max_threads = resources->max_threads;
    kernel.registers = resources->registers;
    kernel.shared_bytes = std::max(0, resources->shared_bytes - kReserved);
  }
  kernel.dynamic_bytes = kWithoutAsking - kernel.shared_bytes;
  return kernel;
}

}  // namespace

Kernel* find_kernel(const void* function) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().functions.find(function);
  if (found == all().functions.end()) return nullptr;
  std::unique_ptr<Kernel>& kernel = found->second.kernel;
  if (!kernel) kernel = std::make_unique<Kernel>(make(found->second));
  return kernel.get();
}

}  // namespace meshtrain::null_gpu

using namespace meshtrain::null_gpu;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(new FatBinary(static_cast<const __fatBinC_Wrapper_t*>(wrapper)->data));
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** binary, const char* function, char*, const char* symbol, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  const std::lock_guard lock(all().mutex);
  all().functions[function] = {symbol, reinterpret_cast<FatBinary*>(binary), nullptr};
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

}  // extern "C"
