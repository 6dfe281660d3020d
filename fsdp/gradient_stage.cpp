#include "fsdp/gradient_stage.h"

#include <algorithm>

#include "mesh/device/aten.h"

namespace meshtrain {

GradientStage::GradientStage(const std::vector<Unit>& units, const FsdpOptions& options)
    : transfer_(units, options.memory) {
  int64_t most = 0;
  for (const Unit& unit : units) {
    std::vector<Part>& parts = parts_.emplace_back();
    int64_t bytes = 0;
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      parts.push_back({&buffer, bytes});
      bytes += static_cast<int64_t>(buffer.shard_gradients().nbytes());
    }
    most = std::max(most, bytes);
  }
  const SumsInFlight sums = sums_in_flight(options);
  const auto num_slots = static_cast<int64_t>(2 + sums.over_shards + sums.over_replicas + sums.remaining);
  memory_ = at::zeros({num_slots * most}, at::TensorOptions(device_of(units)).dtype(at::kByte));
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    slots_.push_back({memory_.narrow(0, slot * most, most), {}, {}});
    free_.push_back(static_cast<size_t>(slot));
  }
}

GradientStage::Slot& GradientStage::slot_of(size_t unit) {
  return slots_[entered_.at(unit)];
}

at::Tensor GradientStage::view(const Slot& slot, const Part& part) const {
  const at::Tensor& shard = part.buffer->shard_gradients();
  return slot.memory.narrow(0, part.offset, static_cast<int64_t>(shard.nbytes())).view(shard.scalar_type());
}

void GradientStage::enter(size_t unit, bool adds) {
  entered_[unit] = free_.front();
  free_.pop_front();
  Slot& slot = slot_of(unit);
  slot.left.wait();
  if (!adds) return;
  transfer_.wait_for_current();
  for (const Part& part : parts_[unit]) transfer_.copy_in(view(slot, part), part.buffer->shard_gradients());
  slot.arrived = transfer_.mark();
}

at::Tensor GradientStage::gradients(size_t unit, const FlatBuffer& buffer) {
  Slot& slot = slot_of(unit);
  slot.arrived.wait();
  slot.arrived = {};
  const std::vector<Part>& parts = parts_[unit];
  return view(slot, *std::ranges::find(parts, &buffer, &Part::buffer));
}

void GradientStage::forget() {
  for (const auto& [unit, slot] : entered_) free_.push_back(slot);
  entered_.clear();
}

void GradientStage::leave(size_t unit, const OnReduced& on_reduced) {
  Slot& slot = slot_of(unit);
  for (const Part& part : parts_[unit]) {
    if (on_reduced) on_reduced(*part.buffer, view(slot, part));
  }
  transfer_.wait_for_current();
  for (const Part& part : parts_[unit]) transfer_.copy_out(part.buffer->shard_gradients(), view(slot, part));
  slot.left = transfer_.mark();
  free_.push_back(entered_.at(unit));
  entered_.erase(unit);
}

}  // namespace meshtrain
