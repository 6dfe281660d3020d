#include "tests/null_gpu/work.h"

#include <cstdint>

#include "tests/emulated_gpu/cuda/errors.h"
#include "tests/emulated_gpu/cuda/memory.h"
#include "tests/emulated_gpu/cuda/state.h"
#include "tests/null_gpu/log.h"

namespace meshtrain::null_gpu {

cudaError_t give(cudaStream_t stream, const char* what, const std::string& detail) {
  return emulated::tell(emulated::try_give(
      stream, [what, detail] { note(what, detail); }, emulated::Lateness::None));
}

std::string memory_fault(const void* data, size_t bytes, int alignment) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % static_cast<uintptr_t>(alignment) != 0) {
    return "at an address that is not a multiple of " + std::to_string(alignment) + " bytes";
  }
  if (emulated::device_of(data, bytes) < 0 && !emulated::is_pinned(data, bytes)) {
    return emulated::device_of(data, 1) < 0 ? "in memory of the host"
                                            : "at " + std::to_string(bytes) + " bytes that go beyond their allocation";
  }
  return {};
}

}  // namespace meshtrain::null_gpu
