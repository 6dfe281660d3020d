#pragma once

#include <map>
#include <optional>
#include <string>

namespace meshtrain::null_gpu {

/// The resources of a kernel, as the compiler recorded them; 0 when it recorded none.
struct KernelResources {
  int max_threads = 0;   ///< of a block: __launch_bounds__
  int registers = 0;     ///< of a thread
  int shared_bytes = 0;  ///< static shared memory
};

/// The code of a file's kernels for several architectures, as nvcc puts it into a library.
class FatBinary {
 public:
  explicit FatBinary(const void* data) : data_(static_cast<const char*>(data)) {}

  /// Returns the resources of a kernel for sm_90; none when the binary has no such code. Reads the code once.
  std::optional<KernelResources> resources(const std::string& kernel);

 private:
  const char* data_;
  std::optional<std::map<std::string, KernelResources>> kernels_;
};

}  // namespace meshtrain::null_gpu
