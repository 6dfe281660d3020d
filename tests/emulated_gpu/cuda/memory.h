#pragma once

#include <cstddef>

// Memory of the emulated GPU, for code that must know the owner of memory.
namespace meshtrain::emulated {

/// Returns the device that has all of [data, data + bytes) in one allocation; -1 otherwise.
int device_of(const void* data, size_t bytes);

/// Marks host memory as pinned or not: copies from and to pinned memory are asynchronous. cudaHostAlloc calls this
/// itself.
void note_pinned(void* data, size_t bytes, bool is_pinned);

bool is_pinned(const void* data, size_t bytes);

}  // namespace meshtrain::emulated
