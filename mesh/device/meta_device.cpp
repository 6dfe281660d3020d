#include "mesh/device/meta_device.h"

#include <utility>

namespace meshtrain {
namespace {

thread_local c10::DeviceType meta_stands_for = c10::kCUDA;

}  // namespace

MetaDeviceGuard::MetaDeviceGuard(c10::DeviceType device) : before_(std::exchange(meta_stands_for, device)) {}

MetaDeviceGuard::~MetaDeviceGuard() {
  meta_stands_for = before_;
}

c10::DeviceType stood_for(c10::Device device) {
  return device.is_meta() ? meta_stands_for : device.type();
}

}  // namespace meshtrain
