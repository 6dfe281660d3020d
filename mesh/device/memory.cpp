#include "mesh/device/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <string_view>

namespace meshtrain {
namespace {

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

/// The header of each block, with the block's size: a block is freed by its address alone, because LibTorch's kernels
/// take raw memory from an allocator whose blocks are their own contexts. It is as large as the alignment of LibTorch's
/// own blocks, so that blocks stay aligned.
struct alignas(64) Header {
  int64_t bytes;
};

void free_block(void* block) {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  live_bytes -= header->bytes;
  c10::free_cpu(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device host(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, host};
    if (bytes > std::numeric_limits<int64_t>::max() - sizeof(Header)) throw std::bad_alloc();
    auto* header = new (c10::alloc_cpu(bytes + sizeof(Header))) Header{static_cast<int64_t>(bytes)};
    const int64_t live = live_bytes += header->bytes;
    int64_t peak = peak_bytes;
    while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
    }
    return {header + 1, header + 1, &free_block, host};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

HostMemory::HostMemory() {
  constexpr uint8_t kAboveLibTorch = 100;
  static auto* allocator = new CountingAllocator;  // tensors may outlive everything else
  c10::SetAllocator(c10::kCPU, allocator, kAboveLibTorch);
}

HostMemory& HostMemory::counted() {
  static HostMemory memory;
  return memory;
}

int64_t HostMemory::live() const {
  return live_bytes;
}

int64_t HostMemory::peak() const {
  return peak_bytes;
}

void HostMemory::restart_peak() {
  peak_bytes = live_bytes.load();
}

WindowMemory& WindowMemory::counted() {
  static WindowMemory memory;
  return memory;
}

int64_t resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kKey = "VmHWM:";
    if (line.starts_with(kKey)) return std::strtoll(line.c_str() + kKey.size(), nullptr, 10) * 1024;  // in kB
  }
  return 0;
}

}  // namespace meshtrain
