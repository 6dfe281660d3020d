#include "mesh/device/meta_device.h"

#include <utility>

namespace meshtrain {
namespace {

thread_local c10::DeviceType meta_stands_for = c10::kCUDA;
thread_local bool meta_visits_all_pieces = true;

}  // namespace

MetaDeviceGuard::MetaDeviceGuard(c10::DeviceType device, bool visits_all_pieces)
    : before_(std::exchange(meta_stands_for, device)),
      visited_all_pieces_(std::exchange(meta_visits_all_pieces, visits_all_pieces)) {}

MetaDeviceGuard::~MetaDeviceGuard() {
  meta_stands_for = before_;
  meta_visits_all_pieces = visited_all_pieces_;
}

bool visits_all_pieces(const at::Tensor& tensor) {
  return !tensor.is_meta() || meta_visits_all_pieces;
}

c10::DeviceType stood_for(c10::Device device) {
  return device.is_meta() ? meta_stands_for : device.type();
}

}  // namespace meshtrain
