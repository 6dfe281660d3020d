#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/gpu/reference.h"

namespace meshtrain::testing {

at::Device gpu() {
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice();
}

}  // namespace meshtrain::testing
