#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "mesh/backends/mpi/shared_memory/board.h"
#include "mesh/backends/mpi/shared_memory/window.h"
#include "mesh/backends/mpi/transfer.h"

namespace meshtrain {

/// A collective of a group that has several ranks on a host: all_reduce, all_gather, reduce_scatter, and the barrier of
/// one host. Where the tensors of all ranks on a host lie in one window, peers' memory is read and written in place;
/// otherwise pieces pass through the board, or the collective goes through MPI where that is faster.
///
/// Across hosts, ranks with the same local rank exchange the sums of their hosts, or gather for them: chunk by chunk,
/// several of them in flight. Partial sums of halves travel in fp32 and are rounded once. Sums are in the
/// order of ranks inside a host, then in the order of hosts.
///
/// A chunk's stages, each in the order of chunks (step()):
///
/// | stage   | reduce-scatter, all-reduce                           | all-gather                                |
/// | Lay     | without window: the peers' parts, onto the board     |                                           |
/// | Reduce  | peers' parts for this rank, to output or scratch     |                                           |
/// | Across  | several hosts: summed with the other hosts' partials | the shards of ranks with this local rank  |
/// | Deliver | all-reduce: to all peers; reduce-scatter: rounded    | to all peers, or onto the board           |
/// | Collect | all-reduce without window: from the board            | without window: from the board            |
class HostTransfer final : public MpiOperation {
 public:
  /// True for the collectives that this class does.
  static bool takes(const MpiCommunicator& communicator, const Collective& collective);

  /// Throws what MpiTransfer throws, and std::invalid_argument for an all_reduce of common memory.
  HostTransfer(MpiCommunicator& communicator, const Collective& collective);
  ~HostTransfer() override;

  bool advance() override;
  bool finished() const override { return path_ == Path::Mpi ? through_mpi_.finished() : done_; }

 private:
  enum class Path { Unknown, Window, Board, Mpi };
  enum class Stage { Free, Lay, Reduce, Across, Deliver, Collect };
  struct Span {
    int64_t begin;
    int64_t size;
  };
  /// A chunk under way.
  struct Lane {
    Stage stage = Stage::Free;
    int64_t chunk = 0;
    int64_t piece = 0;  ///< of the chunk's row, as much as is on the board at a time
    int64_t moved = 0;  ///< elements of the stage and piece that are done
    std::shared_ptr<MpiTransfer> across;
    std::byte* scratch = nullptr;  ///< partial sums or shards, a row for each host
    std::byte* summed = nullptr;   ///< of a reduce-scatter across hosts, before it is rounded
  };

  void release() override;

  // From the call to the chunks.
  bool open();
  void compare_notices() const;
  void settle_path();
  void cut_into_chunks();
  bool close();

  bool pump();
  bool step(Lane& lane);
  bool lay(Lane& lane);
  bool reduce(Lane& lane);
  bool go_across(Lane& lane);
  bool deliver(Lane& lane);
  bool collect(Lane& lane);
  bool next(Lane& lane, Stage stage, int64_t piece);
  bool reduce_some(Lane& lane);
  void reduce_for_all(int64_t element, int64_t count);
  void deliver_sums(const Lane& lane, const Span& now);
  void deliver_shards(const Lane& lane, const Span& now);
  void copy_to_peers(int64_t element, const std::byte* from, int64_t count);

  void start_across(Lane& lane);
  bool advance_across();

  Span span(const Lane& lane) const;
  /// Returns the elements of an all-reduce's chunk that the rank at `local_rank` reduces, within the chunk.
  Span slice(const Span& chunk, int local_rank) const;
  /// Returns the number of elements that a chunk's stages work on: a slice of an all-reduce, otherwise the chunk.
  int64_t row_elements(const Span& chunk) const;
  /// Returns the lane's piece of such a row for the rank at `local_rank`, whose slice may be shorter.
  Span piece(const Lane& lane, int local_rank) const;
  bool is_last_piece(const Lane& lane) const;
  /// Returns the next range of a stage's elements, in rows of `row`, small enough for other queues to get a turn.
  Span portion(const Lane& lane, int64_t row) const;
  std::byte* output(int64_t element) const { return output_ + element * element_bytes_; }
  const std::byte* input(int64_t element) const { return input_ + element * element_bytes_; }
  /// Returns the group rank of `local_rank` on this rank's host, or of this rank's local rank on `host`.
  int on_this_host(int local_rank) const { return layout_.rank_at(layout_.host, local_rank); }
  int on_host(int host) const { return layout_.rank_at(host, layout_.local_rank); }

  MpiTransfer through_mpi_;
  MpiCommunicator& communicator_;
  HostBoard& board_;
  const HostLayout& layout_;
  const Collective::Kind kind_;
  std::shared_ptr<HostWindow> window_;
  std::vector<std::byte*> peers_;  ///< by local rank: the tensor in the window

  std::byte* output_ = nullptr;
  const std::byte* input_ = nullptr;
  int64_t element_bytes_ = 1;
  int64_t sum_bytes_ = 1;
  int64_t elements_ = 0;  ///< of the tensor (all-reduce) or of a shard
  ReduceKernel reduce_ = nullptr;
  ReduceKernel round_ = nullptr;  ///< nullptr where sums have the tensor's dtype
  HostBoard::Notice notice_;

  Path path_ = Path::Unknown;
  bool opened_ = false;
  bool compared_ = false;
  bool closing_ = false;
  bool done_ = false;
  bool short_ = false;   ///< an all-reduce that everyone computes in full
  bool shared_ = false;  ///< all ranks of the host have the same memory
  int64_t chunk_elements_ = 1;
  int64_t chunks_ = 0;
  int64_t next_chunk_ = 0;
  int64_t piece_elements_ = 1;
  int64_t reduced_ = 0, collected_ = 0;  ///< chunks that are past that stage
  std::vector<Lane> lanes_;
  std::deque<std::shared_ptr<MpiTransfer>> across_;  ///< the first one is under way
};

}  // namespace meshtrain
