#include "runtime/training/optimizer/state_pager.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/pinned_memory.h"

namespace meshtrain {
namespace {

/// Returns the bytes of a tensor in a slot, with those up to the next tensor.
int64_t slot_bytes_of(const at::Tensor& tensor) {
  constexpr int64_t kAlignment = 512;  // bytes, as of memory that LibTorch's allocator returns
  return (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns views of `memory`, the bytes of a slot, like the tensors of `state`.
StatePager::State views(const at::Tensor& memory, const StatePager::State& state) {
  StatePager::State all;
  int64_t begin = 0;
  for (const at::Tensor& tensor : state) {
    all.push_back(memory.narrow(0, begin, static_cast<int64_t>(tensor.nbytes())).view(tensor.scalar_type()));
    begin += slot_bytes_of(tensor);
  }
  return all;
}

}  // namespace

StatePager::StatePager(const std::vector<State>& parts, at::Device device, const ShardMemory& memory, bool cuts)
    : in_(device, memory.is_on_disk()), out_(device, memory.is_on_disk()) {
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t numel = parts[part].at(0).numel(), longest = cuts ? kPiece : std::max<int64_t>(numel, 1);
    for (int64_t begin = 0; begin == 0 || begin < numel; begin += longest) {
      Piece piece{part, {begin, std::min(longest, numel - begin)}, {}};
      int64_t bytes = 0;
      for (const at::Tensor& tensor : parts[part]) {
        piece.state.push_back(tensor.narrow(0, piece.range.offset, piece.range.numel));
        bytes += slot_bytes_of(piece.state.back());
      }
      slot_bytes_ = std::max(slot_bytes_, bytes);
      pieces_.push_back(std::move(piece));
    }
  }
  for (Slot& slot : slots_) {
    slot.memory = at::empty({slot_bytes_}, at::TensorOptions(device).dtype(at::kByte));
    if (memory.is_on_disk() && !device.is_meta()) slot.pinned = pinned_zeros(slot_bytes_, at::kByte, device, "");
  }
  in_.wait_for_current();  // earlier work may use the memory that was just allocated
}

StatePager::~StatePager() {
  if (std::uncaught_exceptions() > 0) return;  // the device may never finish
  in_.mark().synchronize();                    // no copy may use memory that is unpinned
  out_.mark().synchronize();
}

void StatePager::begin() {
  next_ = 0;
  fetch(0);
}

void StatePager::update_next(const Update& update) {
  for (const size_t part = pieces_.at(next_).part; next_ < pieces_.size() && pieces_[next_].part == part; ++next_) {
    fetch(next_ + 1);
    update_piece(next_, update);
  }
}

// The slot's last piece, of this update or of the one before, is copied back first. Earlier copies of this piece to the
// host are complete then, because they are before that copy in its stream.
void StatePager::fetch(size_t piece) {
  if (piece >= pieces_.size()) return;
  Slot& slot = slot_of(piece);
  const State& state = pieces_[piece].state;
  const bool buffered = slot.pinned.defined();
  if (buffered) write_back(slot);
  const State from = buffered ? views(slot.pinned, state) : state, to = views(slot.memory, state);
  in_.wait_for(slot.left);
  for (size_t i = 0; i < state.size(); ++i) {
    if (buffered) from[i].copy_(state[i]);
    in_.copy(to[i], from[i], CopyDirection::ToDevice);
  }
  slot.arrived = in_.mark();
  if (!buffered || piece + 1 == pieces_.size()) return;
  for (const at::Tensor& next : pieces_[piece + 1].state) fetch_ahead(next);
}

void StatePager::update_piece(size_t piece, const Update& update) {
  Slot& slot = slot_of(piece);
  const auto& [part, range, state] = pieces_[piece];
  const State on_device = views(slot.memory, state);
  slot.arrived.wait();
  update(part, range, on_device);
  out_.wait_for_current();
  const bool buffered = slot.pinned.defined();
  const State to = buffered ? views(slot.pinned, state) : state;
  for (size_t i = 0; i < state.size(); ++i) out_.copy(to[i], on_device[i], CopyDirection::ToHost);
  slot.left = out_.mark();
  if (buffered) slot.to_write = &pieces_[piece];
}

void StatePager::write_back(Slot& slot) {
  slot.left.synchronize();
  const Piece* const piece = std::exchange(slot.to_write, nullptr);
  if (piece == nullptr) return;
  const State values = views(slot.pinned, piece->state);
  for (size_t i = 0; i < values.size(); ++i) {
    piece->state[i].copy_(values[i]);
    set_aside(piece->state[i]);
  }
}

void StatePager::finish() {
  for (Slot& slot : slots_) write_back(slot);
}

std::unique_ptr<StatePager> make_state_pager(const std::vector<ParameterGroup>& groups,
                                             const std::vector<StatePager::State>& parts, bool cuts) {
  const Fsdp& fsdp = *groups.at(0).fsdp;
  const bool is_empty = std::ranges::all_of(parts, [](const StatePager::State& state) { return state.empty(); });
  if (!fsdp.pages_state() || is_empty) return nullptr;
  return std::make_unique<StatePager>(parts, device_of(groups), fsdp.state_memory(), cuts);
}

}  // namespace meshtrain
