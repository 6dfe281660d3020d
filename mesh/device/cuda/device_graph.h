#pragma once

#include <functional>

namespace meshtrain {

/// Work of a device that is recorded once and then replayed as one launch, without the host's part of it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Calls `work` and records the work that it puts on the current stream, without running it. `work` may not wait for
  /// the device, and must join the other streams that it uses. Memory that it allocates and frees belongs to the graph
  /// from then on. Call it once. Throws what `work` throws.
  virtual void record(const std::function<void()>& work) = 0;
  /// Runs the recorded work on the current stream: it reads and writes the memory that it was recorded with.
  virtual void replay() = 0;
};

}  // namespace meshtrain
