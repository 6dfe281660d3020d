#pragma once

namespace meshtrain {

/// Notes SIGUSR1, SIGUSR2, SIGTERM and SIGINT instead of dying of them, as long as it lives. One at a time.
/// A second SIGINT or SIGTERM ends the process at once.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// True once a signal has come. To be made everyone's decision by the vote of the step.
  bool requested() const;
};

}  // namespace meshtrain
