#pragma once

#include <cuda_runtime_api.h>

namespace meshtrain::emulated {

int device_count();

/// The device of this thread; it is in use from here on.
int use_current_device();

/// Whether the process has made a context on `device`.
bool is_in_use(int device);

}  // namespace meshtrain::emulated
