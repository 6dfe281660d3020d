#pragma once

#include <chrono>

namespace meshtrain {

/// The ways in which NCCL registers the windows of a group.
enum class NcclBuffers {
  Off,         ///< without windows
  Registered,  ///< ncclCommRegister: read and written in place where links allow
  Symmetric,   ///< ncclCommWindowRegister: ranks of one NVLink domain read and write each other's by NCCL's symmetric
               ///< kernels; elsewhere as Registered. A collective passes the same part of a window on every rank.
};

struct NcclOptions {
  std::chrono::seconds connect_limit{120};      ///< to make a communicator
  std::chrono::seconds collective_limit{1800};  ///< from the issue of a collective to its end
  NcclBuffers user_buffers = NcclBuffers::Off;  ///< windows of Placement::Own are memory that NCCL registers
  bool two_queues = false;  ///< groups in the background get a second queue: the two share the thread blocks of one
};

}  // namespace meshtrain
