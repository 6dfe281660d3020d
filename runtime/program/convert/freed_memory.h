#pragma once

#include <malloc.h>

namespace meshtrain {

/// Returns freed memory to the system. Call after each tensor of a checkpoint that is read and written one by one:
/// glibc keeps the blocks of freed tensors, LibTorch's aligned ones do not fit the holes, and without this call the
/// memory of all tensors adds up.
inline void return_freed_memory() {
  ::malloc_trim(0);
}

}  // namespace meshtrain
