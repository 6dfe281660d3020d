#pragma once

#include "mesh/device/aten.h"

namespace meshtrain {

/// Returns `tensor` on `device`, or `tensor` itself when it is there already: from the host to a GPU through pinned
/// memory, in the order of the stream, so that the host does not wait.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

/// Returns when the current stream of `device` has completed its work; at once on the CPU.
void wait_for_stream(at::Device device);

}  // namespace meshtrain
