#include "mesh/device/copy_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

StreamMark::StreamMark(const c10::Stream& stream)
    : event_(std::make_shared<c10::Event>(stream.device_type())), device_(stream.device()) {
  event_->record(stream);
}

void StreamMark::wait() const {
  if (event_) event_->block(current_stream(*device_));
}

void StreamMark::synchronize() const {
  if (event_) event_->synchronize();
}

CopyStream::CopyStream(c10::Device device) {
  if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

void CopyStream::wait_for_current() const {
  if (!stream_) return;
  c10::Event given(stream_->device_type());
  given.record(current_stream(stream_->device()));
  given.block(*stream_);
}

void CopyStream::copy(const at::Tensor& to, const at::Tensor& from) {
  bytes_ += static_cast<int64_t>(from.nbytes());
  then([&] { to.copy_(from, /*non_blocking=*/stream_.has_value()); });
}

void CopyStream::then(const std::function<void()>& issue) const {
  std::optional<c10::StreamGuard> current;
  if (stream_) current.emplace(*stream_);
  issue();
}

StreamMark CopyStream::mark() const {
  return stream_ ? StreamMark(*stream_) : StreamMark();
}

}  // namespace meshtrain
