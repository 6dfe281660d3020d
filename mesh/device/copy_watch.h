#pragma once

#include <cstdint>
#include <optional>

namespace meshtrain {

/// The direction of a copy between a device and the host.
enum class CopyDirection { ToDevice, ToHost };

/// A receiver of the copies that CopyStreams of this thread start on the Meta device, where nothing is copied.
class CopyWatch {
 public:
  virtual ~CopyWatch() = default;

  /// Takes the start of a copy, which runs after the copy `after` of its stream, if any. Returns the copy's number.
  /// `disk`: the host's memory is a file.
  virtual int64_t started(CopyDirection direction, int64_t bytes, bool disk, std::optional<int64_t> after) = 0;
  /// Takes the moment at which computing waits for a copy.
  virtual void awaited(int64_t copy) = 0;
  /// Makes collectives that are issued from now on run after the copy; none: after no copy.
  virtual void set_before_collectives(std::optional<int64_t> copy) = 0;

  /// Sets the receiver of this thread, which must exist until it is replaced; null: none.
  static void set_current(CopyWatch* watch);
};

}  // namespace meshtrain
