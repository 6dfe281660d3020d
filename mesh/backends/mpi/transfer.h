#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/backends/mpi/engine.h"
#include "mesh/backends/mpi/reduce.h"

namespace meshtrain {

/// One collective in progress. The tensors are cut into chunks, several of them in flight, and a chunk goes through one
/// or more phases of messages.
///
/// | collective     | phases                                                                                      |
/// | reduce-scatter | one for each step of the grid: from each partner the rows that this rank needs, and those   |
/// |                | that its later partners need; they are reduced, and are the rows of the next step           |
/// | all-gather     | those steps backwards: to each partner all rows received so far                             |
/// | all-reduce     | the one, then the other, on slices of the chunk                                             |
/// |   if short     | up the tree, each leader reducing what its run sends, and down again                        |
/// |   of few ranks | one: everything to everyone; everyone reduces                                               |
/// | all-to-all, exchange | one: the rows of the peer                                                             |
/// | broadcast      | from the parent in a binomial tree; to the children                                         |
/// | barrier        | phase k: to the rank 2^k further, from the rank 2^k before; log2(size) phases               |
///
/// A group of few ranks has a grid of one step, in which every rank talks to every other.
class MpiTransfer final : public MpiOperation {
 public:
  /// Throws std::invalid_argument for tensors that are not on the host, or a dtype that is not reduced.
  MpiTransfer(MpiCommunicator& communicator, const Collective& collective);

  bool advance() override;
  bool finished() const override { return next_chunk_ == chunks_ && in_flight_ == 0; }
  void release() override;
  /// Returns the collective, with its own copies of the texts; without tensors after release().
  const Collective& collective() const { return collective_; }

 private:
  struct Span {
    int64_t begin;
    int64_t size;
  };
  static constexpr int64_t kTagChunks = 32;  ///< chunks that tags tell apart

  void cut_into_chunks();
  /// Returns the slices of `full`, of `rows` rows each, or equal ones when `rows` is empty.
  std::vector<Span> parts(const at::Tensor& full, const std::vector<int64_t>& rows) const;
  bool may_start_chunk() const;

  bool advance_chunks();
  bool step(MpiSlot& slot);
  bool arrived(MpiSlot& slot);
  /// Throws when a message failed, or is not of the `expected` bytes (-1: any).
  void check_message(const MPI_Status& status, int code, int64_t expected) const;
  /// Returns true when the reduction of the phase is complete.
  bool reduce_some(MpiSlot& slot);

  // Messages of a slot's phase.
  void post(MpiSlot& slot);
  void post_all_reduce(MpiSlot& slot);
  void post_one_round(MpiSlot& slot);
  void post_tree(MpiSlot& slot);
  void post_reduction(MpiSlot& slot, int step);
  void post_gathering(MpiSlot& slot, int step);
  void post_broadcast(MpiSlot& slot);
  void post_barrier(MpiSlot& slot);
  void finish(MpiSlot& slot);

  /// Sets the reduction of a phase: the parts of the first phase are elements of the tensor, those of later phases
  /// partial sums, and the result of the last goes to `output`.
  void set_reduction(MpiSlot& slot, bool is_first, bool is_last, int64_t elements, std::byte* output);
  /// Returns row `row` of a chunk that goes through the grid: a part's share of it, or a slice.
  std::byte* row(const MpiSlot& slot, int row) const;
  int64_t row_elements(const MpiSlot& slot, int row) const;
  /// Returns true when a chunk of an all-reduce goes through the grid in a copy, whose slices have one length.
  bool is_padded(const MpiSlot& slot) const;

  void send(MpiSlot& slot, int peer, const std::byte* data, int64_t bytes);
  void receive(MpiSlot& slot, int peer, std::byte* data, int64_t bytes);
  /// Sends `count` rows of `bytes` each, `pitch` bytes from one to the next, as one message.
  void send_rows(MpiSlot& slot, int peer, const std::byte* data, int count, int64_t bytes, int64_t pitch);
  void receive_rows(MpiSlot& slot, int peer, std::byte* data, int count, int64_t bytes, int64_t pitch);
  int tag(const MpiSlot& slot) const;

  /// Returns the elements of the chunk in a slot, counted in the tensor (all-reduce, exchange, broadcast) or in a part.
  Span span(const MpiSlot& slot) const;
  /// Returns the elements of an all-to-all's part, counted in the tensor; parts may differ in length.
  Span span(const MpiSlot& slot, const Span& part) const;
  std::byte* output(int64_t element) const { return output_ + element * element_bytes_; }
  const std::byte* input(int64_t element) const { return input_ + element * element_bytes_; }
  int peer(int distance) const { return (communicator_.rank + distance) % communicator_.size; }

  MpiCommunicator& communicator_;
  Collective collective_;
  std::string purpose_;
  std::string group_;
  std::string coordinate_;

  std::byte* output_ = nullptr;
  const std::byte* input_ = nullptr;
  int64_t element_bytes_ = 1;
  int64_t sum_bytes_ = 1;  ///< of an element of partial sums
  int64_t elements_ = 0;   ///< to be cut into chunks: of the tensor, or of a part of it
  bool reduces_ = false;

  std::vector<Span> received_, sent_;  ///< parts of an all-to-all, by rank

  uint32_t sequence_ = 0;
  bool one_round_ = false;
  bool tree_ = false;
  int phases_ = 1;
  int64_t chunk_elements_ = 1;
  int64_t chunks_ = 0;
  int64_t next_chunk_ = 0;
  int in_flight_ = 0;
};

}  // namespace meshtrain
