#pragma once

#include <memory>

#include "mesh/backend.h"
#include "mesh/backends/nccl/options.h"

namespace meshtrain {

/// Returns a backend for the ranks of `host`, made by the plug-in: CUDA tensors go through NCCL, others through `host`.
/// Each rank must have a GPU of its own as its current device. Each queue has one communicator and one stream of high
/// priority. A group has one queue; Group::second_queue() makes another. `issue` orders the collective after what the
/// current stream was given, and returns; Work::wait() orders the current stream after it, and never blocks the host. A
/// captured graph records both. Only one thread at a time may issue; the order must be the same on all ranks. A group's
/// Urgency is its share of the GPU (nccl_max_blocks()).
///
/// Windows exist only with user_buffers, for CUDA tensors and Placement::Own. A queue registers a window before it
/// first communicates a tensor in it. Symmetric registration is for queues of the window's group and of groups within
/// it; others register it as Registered does.
///
/// A failure in any group, also without a call (a thread asks NCCL four times a second), ends all of them: running
/// collectives are aborted, and every later issue() and wait() throws one message: coordinate, collective, group,
/// shapes, NCCL's text. Collective over `host`. Throws, on all ranks alike, when the ranks cannot be connected within
/// the limit.
std::shared_ptr<Backend> connect_nccl(std::shared_ptr<Backend> host, const NcclOptions& options = {});

/// The plug-in's function that makes the backend for connect_nccl().
extern "C" std::shared_ptr<Backend> meshtrain_nccl_backend(std::shared_ptr<Backend> host, const NcclOptions& options);

}  // namespace meshtrain
