#pragma once

#include <cstddef>

// Memory of the emulated GPU, for what has to know whose memory it is given.
namespace meshtrain::emulated {

/// The device that the whole of [data, data + bytes) lies on, in one allocation; -1 for everything else.
int device_of(const void* data, size_t bytes);

/// Tells that host memory is pinned, or no longer: copies from and to it are asynchronous. cudaHostAlloc does by
/// itself.
void note_pinned(void* data, size_t bytes, bool is_pinned);

bool is_pinned(const void* data, size_t bytes);

}  // namespace meshtrain::emulated
