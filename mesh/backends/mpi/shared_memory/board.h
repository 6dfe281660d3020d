#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "mesh/backends/mpi/shared_memory/memory.h"

namespace meshtrain {

struct MpiCommunicator;

/// Shared memory in which the ranks of a group on one host publish their progress and lay down small pieces of tensors,
/// with a part for each rank, which that rank alone writes.
///
/// On each channel a rank publishes once for each of its steps, after laying down a piece; the piece of a step stays
/// until the rank publishes two steps later. A rank that waits for all others between its steps, and reads their pieces
/// before its next one, therefore never sees a piece overwritten.
class HostBoard {
 public:
  enum Channel { kOpening, kInward, kOutward, kChannels };

  /// The announcement of a rank that has reached a collective.
  struct Notice {
    int64_t kind = -1;
    int64_t dtype = -1;
    int64_t reduce = -1;
    int64_t elements = 0;
    int64_t window = 0;  ///< id of the window that the tensor lies in; 0 for none
    int64_t offset = 0;  ///< of the tensor there, in bytes

    bool same_call(const Notice& other) const {
      return kind == other.kind && dtype == other.dtype && reduce == other.reduce && elements == other.elements;
    }
  };

  /// The size of a piece on kInward and kOutward.
  static constexpr int64_t kPieceBytes = 256 << 10;
  /// The size of each rank's part.
  static constexpr int64_t kRankBytes = kHostPage + 2 * 2 * kPieceBytes;

  /// `across`: the ranks with this one's local rank on every host; nullptr for one host.
  HostBoard(std::shared_ptr<HostMapping> mapping, const HostLayout& layout, std::shared_ptr<MpiCommunicator> across);
  ~HostBoard();
  HostBoard(const HostBoard&) = delete;
  HostBoard& operator=(const HostBoard&) = delete;

  const HostLayout& layout() const { return layout_; }
  MpiCommunicator* across() const { return across_.get(); }

  /// Returns the memory of this rank's next piece.
  std::byte* piece(Channel channel) { return piece_of(layout_.local_rank, channel, published_[channel] + 1); }
  void publish(Channel channel);
  /// Returns true when every rank has published the step that this one published last.
  bool everyone_published(Channel channel) const;
  const std::byte* piece_of(int local_rank, Channel channel) const {
    return piece_of(local_rank, channel, published_[channel]);
  }

  /// Publishes on kOpening.
  void open(const Notice& notice);
  /// Returns the notice of another rank, after everyone_published(kOpening).
  const Notice& notice_of(int local_rank) const { return rank(local_rank).notices[published_[kOpening] % 2]; }

 private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> steps;
  };
  struct Rank {
    std::array<Counter, kChannels> published;
    std::array<Notice, 2> notices;
  };
  static_assert(sizeof(Rank) <= kHostPage && std::atomic<uint64_t>::is_always_lock_free);

  Rank& rank(int local_rank) const { return *reinterpret_cast<Rank*>(mapping_->base() + local_rank * kRankBytes); }
  std::byte* piece_of(int local_rank, Channel channel, uint64_t step) const {
    const auto number = static_cast<int64_t>(channel == kInward ? step % 2 : 2 + step % 2);
    return mapping_->base() + local_rank * kRankBytes + kHostPage + number * kPieceBytes;
  }

  std::shared_ptr<HostMapping> mapping_;
  HostLayout layout_;
  std::shared_ptr<MpiCommunicator> across_;
  std::array<uint64_t, kChannels> published_{};
};

}  // namespace meshtrain
