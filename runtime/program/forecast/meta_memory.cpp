#include "runtime/program/forecast/meta_memory.h"

#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <stdexcept>

namespace meshtrain {

struct MetaMemory::Counts {
  Purpose purpose = kKept;
  Bytes bytes{}, at_peak{};
  int64_t live = 0, peak = 0, before_backward = 0;
  bool was_backward = false;
};

namespace {

thread_local std::shared_ptr<MetaMemory::Counts> counts_of_thread;

/// A tensor that is counted.
struct CountedTensor {
  std::shared_ptr<MetaMemory::Counts> counts;
  MetaMemory::Purpose purpose;
  int64_t bytes;
};

void end_tensor(void* tensor) {
  const std::unique_ptr<CountedTensor> ended(static_cast<CountedTensor*>(tensor));
  ended->counts->bytes[ended->purpose] -= ended->bytes;
  ended->counts->live -= ended->bytes;
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const c10::Device meta(c10::kMeta);
    const std::shared_ptr<MetaMemory::Counts>& counts = counts_of_thread;
    if (!counts || size == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, meta};
    MetaMemory::Purpose purpose = counts->purpose;
    const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
    if (purpose == MetaMemory::kForward && in_backward) purpose = MetaMemory::kBackward;
    if (in_backward && !counts->was_backward) {
      counts->before_backward = std::max(counts->before_backward, counts->live);
    }
    counts->was_backward = in_backward;
    const auto bytes = static_cast<int64_t>(size);
    counts->bytes[purpose] += bytes;
    counts->live += bytes;
    if (counts->live > counts->peak) {
      counts->peak = counts->live;
      counts->at_peak = counts->bytes;
    }
    return {nullptr, new CountedTensor{counts, purpose, bytes}, &end_tensor, meta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

MetaMemory::MetaMemory() : counts_(std::make_shared<Counts>()) {
  constexpr uint8_t kAboveLibTorch = 100;
  static const bool is_set = [] {
    static auto* const allocator = new MetaAllocator;  // tensors may outlive everything else
    c10::SetAllocator(c10::kMeta, allocator, kAboveLibTorch);
    return true;
  }();
  static_cast<void>(is_set);
  if (counts_of_thread) throw std::logic_error("MetaMemory: this thread already counts");
  counts_of_thread = counts_;
}

MetaMemory::~MetaMemory() {
  counts_of_thread.reset();
}

void MetaMemory::set(Purpose purpose) {
  counts_->purpose = purpose;
}

int64_t MetaMemory::live() const {
  return counts_->live;
}

int64_t MetaMemory::peak() const {
  return counts_->peak;
}

const MetaMemory::Bytes& MetaMemory::at_peak() const {
  return counts_->at_peak;
}

int64_t MetaMemory::before_backward() const {
  return counts_->before_backward;
}

void MetaMemory::restart_peak() {
  counts_->before_backward = 0;
  counts_->peak = counts_->live;
  counts_->at_peak = counts_->bytes;
}

}  // namespace meshtrain
