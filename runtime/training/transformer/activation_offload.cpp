#include "runtime/training/transformer/activation_offload.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/pinned_memory.h"
#include "mesh/device/saved_tensors.h"

namespace meshtrain {
namespace {

constexpr int64_t kSmall = 1024;  // bytes; a copy of fewer costs more than their memory is worth

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

}  // namespace

/// Pinned tensors, and the stream of their copies. Copies of both directions share a stream, so a tensor that is taken
/// again is written after it was read.
class ActivationOffload::Host {
 public:
  explicit Host(at::Device device) : stream(device), device_(device) {}
  ~Host() {
    if (std::uncaught_exceptions() == 0) stream.mark().synchronize();  // no copy may use memory that is unpinned
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// Returns a tensor [numel], uninitialised.
  at::Tensor take(int64_t numel, at::ScalarType dtype) {
    std::vector<at::Tensor>& some = free_[{dtype, numel}];
    if (!some.empty()) {
      at::Tensor tensor = std::move(some.back());
      some.pop_back();
      return tensor;
    }
    static const int64_t page = ::sysconf(_SC_PAGESIZE);
    bytes_ += (numel * static_cast<int64_t>(c10::elementSize(dtype)) + page - 1) / page * page;
    if (device_.is_meta()) return uncounted_meta(numel, dtype);
    return pinned_zeros(numel, dtype, device_, ", or leave out train.offload_activations");
  }
  void give_back(at::Tensor tensor) { free_[{tensor.scalar_type(), tensor.numel()}].push_back(std::move(tensor)); }
  int64_t bytes() const { return bytes_; }

  CopyStream stream;

 private:
  at::Device device_;
  std::map<std::pair<at::ScalarType, int64_t>, std::vector<at::Tensor>> free_;
  int64_t bytes_ = 0;
};

/// The memory of saved tensors that share a storage. It lives as long as autograd needs one of them, and until the
/// copy to the host has ended.
struct ActivationOffload::Kept {
  Kept(std::shared_ptr<Host> owner, const at::Tensor& saved)
      : host(std::move(owner)),
        numel(static_cast<int64_t>(saved.storage().nbytes() / saved.itemsize())),
        on_device(saved.as_strided({numel}, {1}, 0)),
        options(saved.options()) {}
  ~Kept() {
    if (!on_host.defined()) return;
    try {  // The copy may still read or write the memory that is free from here on, also after a backward that threw.
      if (on_device.defined()) copied.wait();
    } catch (const std::exception&) {  // the device itself has failed
    }
    host->give_back(std::move(on_host));
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  /// Starts the copy to the host; the caller sets `copied`.
  void send() {
    on_host = host->take(numel, options.dtype().toScalarType());
    host->stream.copy(on_host, on_device, CopyDirection::ToHost);
  }
  /// Frees the memory on the device for work issued later to the current stream.
  void leave_device() {
    copied.wait();
    on_device.reset();
  }
  at::Tensor unpack(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
    if (!on_device.defined()) fetch({this});
    copied.wait();
    return on_device.as_strided(sizes, strides, offset);
  }
  /// Starts the copies of some records back to the device.
  static void fetch(const std::vector<Kept*>& some) {
    if (some.empty()) return;
    CopyStream& stream = some.front()->host->stream;
    for (Kept* kept : some) kept->on_device = at::empty({kept->numel}, kept->options);
    stream.wait_for_current();  // earlier work may use the memory that was just allocated
    for (Kept* kept : some) stream.copy(kept->on_device, kept->on_host, CopyDirection::ToDevice);
    const StreamMark end = stream.mark();
    for (Kept* kept : some) kept->copied = end;
  }

  std::shared_ptr<Host> host;
  int64_t numel;
  at::Tensor on_device;  // [numel]; undefined while the values are on the host alone
  at::TensorOptions options;
  at::Tensor on_host;  // [numel]; undefined until send()
  StreamMark copied;   // the end of the last copy
};

/// The saved tensors of a block that are on the host.
struct ActivationOffload::Block {
  void fetch() const {
    std::vector<std::shared_ptr<Kept>> alive;
    std::vector<Kept*> absent;
    for (const std::weak_ptr<Kept>& each : kept) {
      const std::shared_ptr<Kept> one = each.lock();
      if (!one || one->on_device.defined()) continue;
      absent.push_back(one.get());
      alive.push_back(one);
    }
    Kept::fetch(absent);
  }

  std::vector<std::weak_ptr<Kept>> kept;
};

ActivationOffload::ActivationOffload(at::Device device, int64_t num_blocks)
    : host_(std::make_shared<Host>(device)), num_blocks_(num_blocks) {}

void ActivationOffload::begin_forward() {
  release_pending();
  current_.clear();
  before_.reset();
  block_ = 0;
}

at::Tensor ActivationOffload::compute(const std::vector<at::Tensor>& staying, const std::function<at::Tensor()>& part) {
  const bool is_last = block_ + 1 == num_blocks_;
  if (!at::GradMode::is_enabled() || is_last) return part();
  staying_ = staying;
  const PackSaved pack = [this](const at::Tensor& saved) -> UnpackSaved {
    const std::shared_ptr<Kept> kept = keep(saved);
    if (!kept) return [saved] { return saved; };
    return [kept, sizes = saved.sizes().vec(), strides = saved.strides().vec(), offset = saved.storage_offset()] {
      return kept->unpack(sizes, strides, offset);
    };
  };
  const SavedTensorsGuard guard(pack);
  at::Tensor y = part();
  staying_.clear();
  return y;
}

std::shared_ptr<ActivationOffload::Kept> ActivationOffload::keep(const at::Tensor& saved) {
  if (!saved.has_storage() || static_cast<int64_t>(saved.storage().nbytes()) < kSmall) return nullptr;
  if (!saved.is_floating_point() || saved.device().is_cpu()) return nullptr;
  const auto shares = [&](const at::Tensor& other) { return share_memory(other, saved); };
  if (std::ranges::any_of(staying_, shares)) return nullptr;
  for (const std::shared_ptr<Kept>& kept : current_) {
    if (!shares(kept->on_device)) continue;
    return kept->options.dtype() == saved.dtype() ? kept : nullptr;  // a copy of the other dtype is rare: it stays
  }
  current_.push_back(std::make_shared<Kept>(host_, saved));
  return current_.back();
}

void ActivationOffload::end_block(const at::Tensor& y) {
  if (!at::GradMode::is_enabled()) return;
  ++block_;
  release_pending();
  if (y.requires_grad() && before_) {
    // The gradient of y exists when this block's backward begins.
    y.register_hook([before = before_](const at::Tensor&) { before->fetch(); });
  }
  if (current_.empty()) return;
  host_->stream.wait_for_current();
  const auto block = std::make_shared<Block>();
  for (const std::shared_ptr<Kept>& kept : current_) {
    kept->send();
    block->kept.push_back(kept);
  }
  const StreamMark end = host_->stream.mark();
  for (const std::shared_ptr<Kept>& kept : current_) kept->copied = end;
  pending_ = std::exchange(current_, {});
  before_ = block;
}

void ActivationOffload::release_pending() {
  for (const std::shared_ptr<Kept>& kept : pending_) kept->leave_device();
  pending_.clear();
}

int64_t ActivationOffload::host_bytes() const {
  return host_->bytes();
}

CopyCosts ActivationOffload::copy_costs() const {
  return host_->stream.costs();
}

}  // namespace meshtrain
