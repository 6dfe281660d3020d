#include "mesh/backends/mpi/shared_memory/window.h"

#include <map>
#include <mutex>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"

namespace meshtrain {
namespace {

/// This rank's parts of all windows, by address.
struct Parts {
  std::mutex mutex;
  std::map<const std::byte*, std::weak_ptr<HostWindow>> windows;

  static Parts& get() {
    static auto* const parts = new Parts;  // tensors may outlive everything else
    return *parts;
  }
};

}  // namespace

HostWindow::HostWindow(std::shared_ptr<HostMapping> mapping, const HostLayout& layout, int64_t bytes,
                       Placement placement)
    : mapping_(std::move(mapping)), bytes_(bytes), placement_(placement) {
  part_ = mapping_->base() + (is_common() ? 0 : layout.local_rank * rank_bytes(layout, bytes, placement));
  is_common() ? WindowMemory::counted().add_common(bytes_) : WindowMemory::counted().add_own(bytes_);
}

HostWindow::~HostWindow() {
  is_common() ? WindowMemory::counted().add_common(-bytes_) : WindowMemory::counted().add_own(-bytes_);
  Parts& parts = Parts::get();
  const std::lock_guard lock(parts.mutex);
  parts.windows.erase(part_);
}

int64_t HostWindow::rank_bytes(const HostLayout& layout, int64_t bytes, Placement placement) {
  return full_pages(placement == Placement::Common ? (bytes + layout.local_size - 1) / layout.local_size : bytes);
}

at::Tensor HostWindow::tensor(std::shared_ptr<HostWindow> window, int64_t numel, const at::TensorOptions& options) {
  std::byte* const part = window->part_;
  {
    Parts& parts = Parts::get();
    const std::lock_guard lock(parts.mutex);
    parts.windows.emplace(part, window);
  }
  return at::from_blob(
      part, {numel}, [kept = std::move(window)](void*) {}, options);
}

std::shared_ptr<HostWindow> HostWindow::around(const at::Tensor& tensor) {
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  Parts& parts = Parts::get();
  const std::lock_guard lock(parts.mutex);
  const auto after = parts.windows.upper_bound(data);
  if (after == parts.windows.begin()) return nullptr;
  const auto& [part, kept] = *std::prev(after);
  std::shared_ptr<HostWindow> window = kept.lock();
  return window && data + tensor.nbytes() <= part + window->bytes_ ? window : nullptr;
}

}  // namespace meshtrain
