#include "mesh/device/pinned_memory.h"

#include <c10/core/StorageImpl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"

namespace meshtrain {
namespace {

struct PinnedPages {
  void* address;
  size_t bytes;
};

void free_pages(void* context) {
  const std::unique_ptr<PinnedPages> pages(static_cast<PinnedPages*>(context));
  if (std::uncaught_exceptions() > 0) return;  // the device may never finish: the process ends, and the pages with it
  open_cuda_plugin().unpin(pages->address);
  ::munmap(pages->address, pages->bytes);
}

[[noreturn]] void fail(int64_t bytes, const std::string& problem, const std::string& remedy) {
  throw std::runtime_error("cannot pin " + size_text(bytes) + " of host memory: " + problem +
                           ": free memory, or raise the job's memory limit (and ulimit -l)" + remedy);
}

/// Makes untouched pages prefer the memory of a NUMA node. Has no effect where the system refuses.
void prefer_node(void* address, size_t bytes, int node) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT, kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
  if (node < 0 || node >= kBits) return;
  const unsigned long nodes = 1UL << node;
  ::syscall(SYS_mbind, address, bytes, kPreferred, &nodes, static_cast<unsigned long>(kBits + 1), 0);
}

}  // namespace

at::Tensor uncounted_meta(int64_t numel, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({numel}, at::TensorOptions(at::kMeta).dtype(dtype));
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kMeta));
  return tensor;
}

at::Tensor pinned_zeros(int64_t numel, at::ScalarType dtype, at::Device device, const std::string& remedy) {
  const auto options = at::TensorOptions(at::kCPU).dtype(dtype);
  if (numel == 0) return at::empty({0}, options);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t bytes = (static_cast<size_t>(numel) * c10::elementSize(dtype) + page - 1) / page * page;
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) fail(static_cast<int64_t>(bytes), std::strerror(errno), remedy);
  CudaPlugin& plugin = open_cuda_plugin();
  prefer_node(address, bytes, plugin.numa_node(device.index()));
  if (const std::string problem = plugin.pin(address, bytes); !problem.empty()) {
    ::munmap(address, bytes);
    fail(static_cast<int64_t>(bytes), problem, remedy);
  }
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(address, new PinnedPages{address, bytes}, &free_pages, at::kCPU),
                             /*allocator=*/nullptr, /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {numel});
}

}  // namespace meshtrain
