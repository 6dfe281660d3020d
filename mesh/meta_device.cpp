#include "mesh/meta_device.h"

#include <utility>

namespace meshtrain {
namespace {

thread_local c10::DeviceType meta_stands_for = c10::kCUDA;

}  // namespace

MetaStandsFor::MetaStandsFor(c10::DeviceType device) : before_(std::exchange(meta_stands_for, device)) {}

MetaStandsFor::~MetaStandsFor() {
  meta_stands_for = before_;
}

bool is_host(c10::Device device) {
  return device.is_cpu() || (device.is_meta() && meta_stands_for == c10::kCPU);
}

}  // namespace meshtrain
