#include "mesh/device/copy_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

thread_local CopyWatch* watch_of_thread = nullptr;

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

/// Measures how long a GPU waits for copies: from the moment at which its current stream has done all work issued
/// before the wait, to the end of the copy.
class CopyWaits {
 public:
  /// Takes that the current stream, or the host, is about to wait for the event `copied`.
  void begin(const std::shared_ptr<c10::Event>& copied, c10::Device device) {
    if (!waits_.empty() && waits_.back().copied == copied) return;
    seconds();  // so that few waits are kept
    auto idle = std::make_unique<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    idle->record(current_stream(device));
    waits_.push_back({std::move(idle), copied});
  }

  /// Returns the time of all waits that have ended.
  double seconds() {
    while (!waits_.empty() && waits_.front().idle->query() && waits_.front().copied->query()) {
      seconds_ += std::max(0., waits_.front().idle->elapsedTime(*waits_.front().copied)) / 1e3;
      waits_.pop_front();
    }
    return seconds_;
  }

 private:
  struct Wait {
    std::unique_ptr<c10::Event> idle;
    std::shared_ptr<c10::Event> copied;
  };
  std::deque<Wait> waits_;
  double seconds_ = 0;
};

StreamMark::StreamMark(const c10::Stream& stream)
    : event_(std::make_shared<c10::Event>(stream.device_type())), device_(stream.device()) {
  event_->record(stream);
}

StreamMark::StreamMark(const c10::Stream& stream, std::shared_ptr<CopyWaits> waits)
    : event_(std::make_shared<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT)),
      device_(stream.device()),
      waits_(std::move(waits)) {
  event_->record(stream);
}

void StreamMark::wait() const {
  if (waits_) waits_->begin(event_, *device_);
  if (event_) event_->block(current_stream(*device_));
  if (copy_ && watch_of_thread != nullptr) watch_of_thread->awaited(*copy_);
}

void StreamMark::synchronize() const {
  if (waits_) waits_->begin(event_, *device_);
  if (event_) event_->synchronize();
  if (copy_ && watch_of_thread != nullptr) watch_of_thread->awaited(*copy_);
}

void CopyWatch::set_current(CopyWatch* watch) {
  watch_of_thread = watch;
}

CopyStream::CopyStream(c10::Device device, bool disk) : disk_(disk) {
  if (!device.is_cuda()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  waits_ = std::make_shared<CopyWaits>();
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
  (direction == CopyDirection::ToDevice ? costs_.to_device : costs_.to_host) += bytes;
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
  StreamMark mark = stream_ ? StreamMark(*stream_, waits_) : StreamMark();
  mark.copy_ = last_;
  return mark;
}

CopyCosts CopyStream::costs() const {
  CopyCosts costs = costs_;
  if (waits_) costs.exposed = waits_->seconds();
  return costs;
}

}  // namespace meshtrain
