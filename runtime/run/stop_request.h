#pragma once

#include <csignal>
#include <thread>

namespace meshtrain {

/// Notes SIGUSR1, SIGUSR2, SIGTERM and SIGINT instead of dying of them, as long as it lives. One at a time.
/// A second SIGINT or SIGTERM ends the process at once.
///
/// They are taken on a thread that does nothing else ("signals"): kernels of matrix products let the stack pointer
/// point into their own buffers, and a signal that came upon one would be written over whatever lies below. So the
/// thread that makes this blocks them, and those that it starts from then on do: make it before there are others.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// True once a signal has come. To be made everyone's decision by the vote of the step.
  bool requested() const;

 private:
  std::jthread receiver_;
  sigset_t before_;  // what the thread that made this blocked
};

}  // namespace meshtrain
