#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/device/copy_stream.h"

namespace meshtrain {

/// Brings an optimizer's state to the GPU that updates the shards, piece by piece, when the state is in host memory or
/// on disk (Fsdp::pages_state()). A piece is copied to one of three slots on the GPU while the piece before it is
/// updated and the one before that is copied back, on one stream for each direction. Only the GPU waits for copies;
/// on disk the host too, which moves pieces between the file and pinned memory.
class StatePager {
 public:
  /// The most elements of a piece of a part that may be cut: copies of this size take a bus's full rate.
  static constexpr int64_t kPiece = 1 << 20;

  /// The state of a range of elements: tensors [numel] that an update takes together.
  using State = std::vector<at::Tensor>;

  /// `parts`: in the order of updates, each tensor from `memory`. `device`: of the shards. `cuts`: the elements of a
  /// part are updated by themselves, so that large parts may be cut. Allocates the slots, each for the largest piece.
  /// Throws as pinned_zeros() does when `memory` is on disk.
  StatePager(const std::vector<State>& parts, at::Device device, const ShardMemory& memory, bool cuts);
  ~StatePager();
  StatePager(const StatePager&) = delete;
  StatePager& operator=(const StatePager&) = delete;

  /// Starts an update with the first part.
  void begin();
  /// An update of elements `piece` of a part, whose state is `state`, on the GPU, by work on the current stream. All
  /// work that uses `state` must be issued when it returns.
  using Update = std::function<void(size_t part, Range piece, const State& state)>;
  /// Calls `update` with each piece of the next part.
  void update_next(const Update& update);

  /// Returns when all state is in host memory or in the file. The host may then read and change it.
  void finish();
  /// Returns the costs of copies so far.
  CopyCosts copy_costs() const { return in_.costs() + out_.costs(); }
  /// Returns the bytes of the slots.
  int64_t device_bytes() const { return static_cast<int64_t>(slots_.size()) * slot_bytes_; }

 private:
  struct Piece {
    size_t part;
    Range range;  // of the part
    State state;
  };
  struct Slot {
    at::Tensor memory;                // bytes on the device
    at::Tensor pinned;                // as many on the host, for state on disk; undefined: the state itself is pinned
    const Piece* to_write = nullptr;  // whose new values are in `pinned` when `left` is reached
    StreamMark arrived, left;
  };

  Slot& slot_of(size_t piece) { return slots_[piece % slots_.size()]; }
  /// Starts to copy a piece to its slot, if there is such a piece.
  void fetch(size_t piece);
  void update_piece(size_t piece, const Update& update);
  /// Waits until a slot's piece has left the device, and writes it to the disk.
  static void write_back(Slot& slot);

  std::vector<Piece> pieces_;
  size_t next_ = 0;  // piece to update
  int64_t slot_bytes_ = 0;
  CopyStream in_, out_;
  std::array<Slot, 3> slots_;
};

/// Returns a pager of `parts`, state that zero_state() returned for `groups`; null when the state need not be paged, or
/// when there is none.
std::unique_ptr<StatePager> make_state_pager(const std::vector<ParameterGroup>& groups,
                                             const std::vector<StatePager::State>& parts, bool cuts);

/// Calls `update` with each of `parts` in turn: with all its elements and its state() at once, or with pieces that
/// `pager` brings. `update` works on the current stream alone.
template <class Parts, class Update>
void update_parts(const Parts& parts, StatePager* pager, const Update& update) {
  if (pager == nullptr) {
    return stream(parts, [&](const auto& part) { update(part, Range{0, part.values.numel()}, part.state()); });
  }
  pager->begin();
  for (size_t i = 0; i < parts.size(); ++i) {
    pager->update_next(
        [&](size_t part, Range piece, const StatePager::State& state) { update(parts[part], piece, state); });
  }
}

}  // namespace meshtrain
