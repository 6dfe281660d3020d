#pragma once

#include <string>
#include <vector>

namespace meshtrain::null_gpu {

/// A pointer among a kernel's parameters.
struct PointerParameter {
  int index;
  int alignment;  ///< in bytes, as the kernel's accesses require
};

/// A registered kernel.
struct Kernel {
  std::string name;
  std::vector<PointerParameter> pointers;
  int max_threads = 1024;  ///< of a block: __launch_bounds__
  int registers = 0;       ///< of a thread; 0 where unknown
  int shared_bytes = 0;    ///< static
  int dynamic_bytes = 0;   ///< dynamic shared memory that launches may ask for
};

/// Returns the kernel of a host function; null for others. It lives as long as the process.
Kernel* find_kernel(const void* function);

}  // namespace meshtrain::null_gpu
