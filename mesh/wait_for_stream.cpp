#include "mesh/wait_for_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace meshtrain {

void wait_for_stream(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl of_device(device.type());
  c10::Event event(device.type());
  event.record(of_device.getStream(device));
  event.synchronize();
}

}  // namespace meshtrain
