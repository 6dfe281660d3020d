#pragma once

#include <cuda_runtime_api.h>

namespace meshtrain::emulated {

int device_count();

/// Returns the device of this thread and marks it as in use.
int use_current_device();

/// Returns true when the process has a context on `device`.
bool is_in_use(int device);

}  // namespace meshtrain::emulated
