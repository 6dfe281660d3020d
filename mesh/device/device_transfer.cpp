#include "mesh/device/device_transfer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace meshtrain {

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  const bool through_pinned = tensor.is_cpu() && device.is_cuda();
  return (through_pinned ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/through_pinned);
}

void wait_for_stream(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl of_device(device.type());
  c10::Event event(device.type());
  event.record(of_device.getStream(device));
  event.synchronize();
}

}  // namespace meshtrain
