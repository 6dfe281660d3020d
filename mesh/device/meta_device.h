#pragma once

#include <c10/core/Device.h>

namespace meshtrain {

/// While it exists, tensors of the Meta device that this thread uses stand for those of another device: code that
/// chooses by the device, and so has other temporaries, chooses as it would there. Without one they stand for a GPU's.
class MetaDeviceGuard {
 public:
  explicit MetaDeviceGuard(c10::DeviceType device);
  ~MetaDeviceGuard();
  MetaDeviceGuard(const MetaDeviceGuard&) = delete;
  MetaDeviceGuard& operator=(const MetaDeviceGuard&) = delete;

 private:
  c10::DeviceType before_;
};

/// Returns the type of a device; for the Meta device that of the device it stands for.
c10::DeviceType stood_for(c10::Device device);

/// Returns true for the CPU, and for the Meta device where it stands for it.
inline bool is_host(c10::Device device) {
  return stood_for(device) == c10::kCPU;
}

/// Returns true for a GPU, and for the Meta device where it stands for one.
inline bool is_gpu(c10::Device device) {
  return stood_for(device) == c10::kCUDA;
}

}  // namespace meshtrain
