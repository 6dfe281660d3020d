#pragma once

#include <csignal>
#include <string>
#include <thread>

namespace meshtrain {

/// A handler that records SIGUSR1, SIGUSR2, SIGTERM and SIGINT, while this object lives, instead of ending the process.
/// One object at a time. A second SIGINT or SIGTERM ends the process at once. The handler stays when the object is
/// gone: where a launcher signals all ranks, the first rank's request may have ended the run before the last rank's
/// comes, which must not end that process by a signal.
///
/// A thread that does nothing else ("signals") receives them: kernels of matrix products let the stack pointer point
/// into their own buffers, and a signal frame would overwrite the data below it. The thread that constructs this object
/// blocks the signals, and threads started later inherit that: construct it before other threads start.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Returns true after a signal. Each rank sends it in the vote of the step, so that all ranks stop together.
  bool requested() const { return signal() != 0; }
  /// Returns the first signal; 0 without one.
  int signal() const;

 private:
  std::jthread receiver_;
  sigset_t before_;  // signal mask of the constructing thread
};

/// Returns a line that says how to stop a run with a checkpoint where Ctrl-C does not: under Open MPI's mpirun, unless
/// tools/ranks started it. Empty elsewhere.
std::string how_to_stop();

}  // namespace meshtrain
