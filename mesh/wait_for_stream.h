#pragma once

#include <c10/core/Device.h>

namespace meshtrain {

/// Returns when the current stream of `device` has done all that it was given; at once on the CPU.
void wait_for_stream(c10::Device device);

}  // namespace meshtrain
