#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "communicator.h"
#include "tests/emulated_gpu/cuda/streams.h"

struct ncclWindow_vidmem {
  ncclComm* comm;
};

namespace meshtrain::emulated {
namespace {

struct Registered {
  ncclComm* comm;
  uintptr_t begin;
  size_t bytes;
  uint64_t window = 0;  ///< WindowOffset::window
};

/// The memory registered in the process.
struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, size_t> allocated;   // by ncclMemAlloc
  std::map<void*, Registered> registered;  // by handle
};

Memory& memory() {
  static auto& everything = *new Memory;
  return everything;
}

bool is_inside(uintptr_t begin, size_t bytes) {
  auto after = memory().allocated.upper_bound(begin);
  if (after == memory().allocated.begin()) return false;
  --after;
  return begin + bytes <= after->first + after->second;
}

ncclResult_t add(ncclComm* comm, void* data, size_t bytes, void* handle, const char* call, uint64_t window = 0) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(memory().mutex);
  if (data == nullptr || bytes == 0 || !is_inside(begin, bytes)) {
    return refuse(comm, ncclInvalidArgument, std::string(call) + " of what ncclMemAlloc did not give");
  }
  for (const auto& [other, range] : memory().registered) {
    if (window > 0 && range.comm == comm && range.window > 0 && begin < range.begin + range.bytes &&
        range.begin < begin + bytes) {
      return refuse(comm, ncclInvalidUsage, std::string(call) + " of what lies in a window already");
    }
  }
  memory().registered[handle] = {comm, begin, bytes, window};
  return ncclSuccess;
}

ncclResult_t remove(ncclComm* comm, void* handle, const char* call, bool is_window) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().registered.find(handle);
  if (found == memory().registered.end() || found->second.comm != comm || (found->second.window > 0) != is_window) {
    return refuse(comm, ncclInvalidUsage, std::string(call) + " of what is not registered");
  }
  if (comm->given > 0) return refuse(comm, ncclInvalidUsage, std::string(call) + " while operations are under way");
  memory().registered.erase(found);
  return ncclSuccess;
}

}  // namespace

bool is_registered(const ncclComm& comm, const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(memory().mutex);
  for (const auto& [handle, range] : memory().registered) {
    if (range.comm == &comm && begin >= range.begin && begin + bytes <= range.begin + range.bytes) return true;
  }
  return false;
}

WindowOffset window_offset(const ncclComm& comm, const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(memory().mutex);
  for (const auto& [handle, range] : memory().registered) {
    if (range.comm != &comm || range.window == 0 || begin < range.begin || begin >= range.begin + range.bytes) continue;
    return {range.window, begin - range.begin, begin + bytes <= range.begin + range.bytes};
  }
  return {};
}

bool has_windows(const ncclComm& comm) {
  const std::lock_guard lock(memory().mutex);
  return std::any_of(memory().registered.begin(), memory().registered.end(),
                     [&](const auto& each) { return each.second.comm == &comm && each.second.window > 0; });
}

void forget_registered(const ncclComm& comm) {
  const std::lock_guard lock(memory().mutex);
  std::erase_if(memory().registered, [&](const auto& each) { return each.second.comm == &comm; });
}

}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  if (data == nullptr) return ncclInvalidArgument;
  if (cudaMalloc(data, bytes) != cudaSuccess) {
    cudaGetLastError();
    return refuse(nullptr, ncclUnhandledCudaError, "ncclMemAlloc: no memory is left, or a capture is in progress");
  }
  const std::lock_guard lock(memory().mutex);
  memory().allocated[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  if (data == nullptr) return ncclSuccess;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  size_t bytes = 0;
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().allocated.find(begin);
    if (found == memory().allocated.end()) {
      return refuse(nullptr, ncclInvalidUsage, "ncclMemFree of what ncclMemAlloc did not give");
    }
    for (const auto& [handle, range] : memory().registered) {
      if (range.begin >= begin && range.begin < begin + found->second) {
        return refuse(range.comm, ncclInvalidUsage, "ncclMemFree of memory that is still registered");
      }
    }
    bytes = found->second;
    memory().allocated.erase(found);
  }
  run_beside_streams(
      [=] { std::memset(data, 0xff, bytes); });  // does not wait as cudaFree() does: later readers get NaN
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  auto* const made = new char;
  const ncclResult_t result = add(comm, data, bytes, made, __func__);
  if (result == ncclSuccess) {
    *handle = made;
  } else {
    delete made;
  }
  return result;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  const ncclResult_t result = remove(comm, handle, __func__, false);
  if (result == ncclSuccess) delete static_cast<char*>(handle);
  return result;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes, ncclWindow_t* window, int flags) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  if (window == nullptr || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0) return ncclInvalidArgument;
  if (reinterpret_cast<uintptr_t>(data) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    return refuse(comm, ncclInvalidArgument, "ncclCommWindowRegister of memory that is not aligned to a page");
  }
  *window = nullptr;
  if (std::getenv("MESHTRAIN_EMULATED_NCCL_NO_WINDOWS") != nullptr) {
    return refuse(comm, ncclInvalidUsage, "ncclCommWindowRegister is refused, as was asked for");
  }
  return start(*comm, [=] {
    std::vector<Note> notes(static_cast<size_t>(comm->size));
    const uint64_t number = ++comm->windows;
    const Note mine{.kind = 2, .color = flags, .key = static_cast<int32_t>(number), .device = 0, .bytes = bytes};
    if (!comm->shared.meet(mine, notes.data(), [comm] { return comm->ends(); })) return ncclRemoteError;
    for (const Note& note : notes) {
      if (note.kind != mine.kind || note.color != flags || note.key != mine.key || note.bytes != bytes) {
        return refuse(comm, ncclInvalidUsage, "ncclCommWindowRegister is not the same on all ranks");
      }
    }
    auto* const made = new ncclWindow_vidmem{comm};
    const ncclResult_t result = add(comm, data, bytes, made, "ncclCommWindowRegister", number);
    if (result == ncclSuccess) *window = made;
    return result;
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (const ncclResult_t result = check(comm, __func__); result != ncclSuccess) return result;
  const ncclResult_t result = remove(comm, window, __func__, true);
  if (result == ncclSuccess) delete window;
  return result;
}

}  // extern "C"
