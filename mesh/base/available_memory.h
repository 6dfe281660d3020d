#pragma once

#include <cstdint>

namespace meshtrain {

/// Returns the bytes that this host can still allocate without swapping or ending a process, by its system and by the
/// limits of this process's control groups; the largest number where neither says.
int64_t available_host_memory();

/// Returns the bytes that this process may still map by its own limit (ulimit -v); the largest number without one.
int64_t available_address_space();

}  // namespace meshtrain
