#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace meshtrain {

/// A point in a stream of a GPU. A value; the default is a point that has been reached.
class StreamMark {
 public:
  StreamMark() = default;
  /// The point after all work that `stream` has been given.
  explicit StreamMark(const c10::Stream& stream);

  /// Lets the current stream of this thread wait for the point; the host goes on at once.
  void wait() const;
  /// Returns when the point is reached.
  void synchronize() const;

 private:
  std::shared_ptr<c10::Event> event_;
  std::optional<c10::Device> device_;
};

/// A queue of copies between host and GPU, which run while the GPU computes. For tensors of other devices copies are
/// done at once. Not for graphs: a copy would be recorded with its addresses alone.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device);

  /// Lets later copies wait for all work that the current stream of this thread has been given.
  void wait_for_current() const;
  /// Starts to copy `from` to `to`: of one dtype and size, contiguous, the host's part from pinned_zeros(). Memory must
  /// stay as it is until mark() is reached.
  void copy(const at::Tensor& to, const at::Tensor& from);
  /// Calls `issue` with this as the current stream, so that work of other streams that it starts comes after the
  /// copies.
  void then(const std::function<void()>& issue) const;
  /// Returns the point after all copies so far.
  StreamMark mark() const;

  /// Returns the bytes copied so far.
  int64_t bytes() const { return bytes_; }

 private:
  std::optional<c10::Stream> stream_;  // none for other devices than a GPU
  int64_t bytes_ = 0;
};

}  // namespace meshtrain
