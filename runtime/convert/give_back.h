#pragma once

#include <malloc.h>

namespace meshtrain {

/// Memory that was freed goes back to the system. Else tensor after tensor adds up: glibc keeps it, and LibTorch's
/// aligned blocks do not fit into the holes that such blocks leave.
inline void give_back_memory() {
  ::malloc_trim(0);
}

}  // namespace meshtrain
