#pragma once

#include <functional>

namespace meshtrain {

/// Work of a device that is recorded once and then run as a whole, without the host's part in it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Calls `work` and records what it gives to the current stream; none of that is run. `work` may not wait for the
  /// device; other streams that it gives work to have to be waited for in it. Memory that it takes and lets go of is the graph's own from then on.
  /// Throws what `work` throws. Once.
  virtual void record(const std::function<void()>& work) = 0;
  /// Gives the recorded work to the current stream: it reads and writes the memory that it was recorded with.
  virtual void replay() = 0;
};

}  // namespace meshtrain
