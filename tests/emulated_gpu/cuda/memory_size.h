#pragma once

#include <cstddef>

namespace meshtrain::emulated {

constexpr size_t kDeviceBytes = size_t{2} << 30;

}  // namespace meshtrain::emulated
