#include "mesh/device/copy_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

thread_local CopyWatch* watch_of_thread = nullptr;

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
  if (copy_ && watch_of_thread != nullptr) watch_of_thread->awaited(*copy_);
}

void StreamMark::synchronize() const {
  if (event_) event_->synchronize();
  if (copy_ && watch_of_thread != nullptr) watch_of_thread->awaited(*copy_);
}

void CopyWatch::set_current(CopyWatch* watch) {
  watch_of_thread = watch;
}

CopyStream::CopyStream(c10::Device device, bool disk) : disk_(disk) {
  if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

CopyStream::~CopyStream() {
  try {
    if (stream_) mark().wait();
  } catch (const std::exception&) {  // the device itself has failed
  }
}

void CopyStream::wait_for_current() const {
  if (!stream_) return;
  c10::Event given(stream_->device_type());
  given.record(current_stream(stream_->device()));
  given.block(*stream_);
}

void CopyStream::wait_for(const StreamMark& mark) {
  if (stream_ && mark.event_) mark.event_->block(*stream_);
  if (mark.copy_) last_ = mark.copy_;  // forecasts order copies of one direction themselves
}

void CopyStream::copy(const at::Tensor& to, const at::Tensor& from, CopyDirection direction) {
  const auto bytes = static_cast<int64_t>(from.nbytes());
  (direction == CopyDirection::ToDevice ? bytes_.to_device : bytes_.to_host) += bytes;
  if (to.is_meta() && watch_of_thread != nullptr) {
    last_ = watch_of_thread->started(direction, bytes, disk_, last_);
    return;
  }
  then([&] { to.copy_(from, /*non_blocking=*/stream_.has_value()); });
}

void CopyStream::then(const std::function<void()>& issue) const {
  std::optional<c10::StreamGuard> current;
  if (stream_) current.emplace(*stream_);
  if (watch_of_thread != nullptr) watch_of_thread->set_before_collectives(last_);
  issue();
  if (watch_of_thread != nullptr) watch_of_thread->set_before_collectives({});
}

StreamMark CopyStream::mark() const {
  StreamMark mark = stream_ ? StreamMark(*stream_) : StreamMark();
  mark.copy_ = last_;
  return mark;
}

}  // namespace meshtrain
