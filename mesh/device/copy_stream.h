#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "mesh/device/copy_watch.h"

namespace meshtrain {

class CopyWaits;

/// A point in a GPU's stream. A value; the default is a point that has been reached.
class StreamMark {
 public:
  StreamMark() = default;
  /// Marks the point after all work issued to `stream` so far.
  explicit StreamMark(const c10::Stream& stream);

  /// Makes the current stream of this thread wait for the point; the host does not wait.
  void wait() const;
  /// Returns when the point is reached.
  void synchronize() const;

 private:
  friend class CopyStream;
  StreamMark(const c10::Stream& stream, std::shared_ptr<CopyWaits> waits);

  std::shared_ptr<c10::Event> event_;
  std::optional<c10::Device> device_;
  std::shared_ptr<CopyWaits> waits_;  // measures the waits for this point; null: nothing does
  std::optional<int64_t> copy_;       // on the Meta device: the number of the last copy before the point
};

/// What copies between a device and the host have cost.
struct CopyCosts {
  int64_t to_device = 0, to_host = 0;  ///< bytes
  double exposed = 0;                  ///< seconds for which a GPU had no work until a copy ended

  int64_t bytes() const { return to_device + to_host; }
  CopyCosts operator+(const CopyCosts& other) const {
    return {to_device + other.to_device, to_host + other.to_host, exposed + other.exposed};
  }
  CopyCosts operator-(const CopyCosts& other) const {
    return {to_device - other.to_device, to_host - other.to_host, exposed - other.exposed};
  }
};

/// A queue of copies between host and GPU, which run while the GPU computes. Copies of tensors on other devices are
/// complete when copy() returns; those of the Meta device only count, here and in CopyWatch. Do not use it in graphs:
/// they would record only a copy's addresses.
class CopyStream {
 public:
  /// `disk`: the host's memory is a file, which only forecasts use.
  explicit CopyStream(c10::Device device, bool disk = false);
  /// Makes the current stream of this thread wait for the copies, which may use memory that is freed next. Owners of
  /// pinned memory must wait themselves.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Makes later copies wait for all work issued so far to the current stream of this thread.
  void wait_for_current() const;
  /// Makes later copies wait for the point.
  void wait_for(const StreamMark& mark);
  /// Starts to copy `from` to `to`. Both must be contiguous and of the same dtype and size, and the host's tensor must
  /// be from pinned_zeros(). Their memory must not change until mark() is reached.
  void copy(const at::Tensor& to, const at::Tensor& from, CopyDirection direction);
  /// Calls `issue` with this stream as the current one, so that work that `issue` starts on other streams runs after
  /// the copies.
  void then(const std::function<void()>& issue) const;
  /// Returns the point after all copies so far.
  StreamMark mark() const;

  /// Returns the costs so far: the bytes of all copies, and the time of the waits that have ended.
  CopyCosts costs() const;

 private:
  std::optional<c10::Stream> stream_;  // none when the device is not a GPU
  bool disk_;
  std::optional<int64_t> last_;       // the number of the copy before the next one, for CopyWatch
  CopyCosts costs_;                   // without the time
  std::shared_ptr<CopyWaits> waits_;  // null when the device is not a GPU
};

}  // namespace meshtrain
