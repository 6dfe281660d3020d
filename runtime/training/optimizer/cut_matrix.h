#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "mesh/replica_map.h"

namespace meshtrain {

/// The distribution of one matrix over the ranks: tp shards it by rows or columns; a tp rank's part is laid flat and
/// cut anywhere over the shards of its buffer; and replicas of the model keep the same. One rank, the owner, may
/// assemble the complete matrix: the ranks of its replica send it their pieces and receive theirs of the result.
/// Arithmetic alone, the same on every rank; the values of the parameter are not read.
class CutMatrix {
 public:
  /// `segment` of `buffer` must be a matrix, or a stack of Parameter::num_matrices that every rank of `replicas` holds,
  /// of which this is number `index`. Stacks that are cut over ranks: use ReplicaMap::own_part(). `replicas` must
  /// outlive this.
  CutMatrix(const FlatBuffer& buffer, const Segment& segment, const ReplicaMap& replicas, int64_t index = 0);

  int64_t rows() const { return shape_[0]; }
  int64_t cols() const { return shape_[1]; }
  /// Returns the number of multiplications of one step of newton_schulz().
  double work() const;
  /// Returns the elements of a tp rank's part in the buffer.
  Range in_buffer() const { return in_buffer_; }

  /// Returns the elements that `rank` of the world keeps, in its tp rank's part, laid flat; perhaps none.
  Range kept(int rank) const;
  /// Returns true when `rank` sends its piece to `owner`.
  bool gives(int rank, int owner) const;
  /// Returns true when `rank` receives its piece from `owner`; ranks of other replicas receive it from those that do.
  bool takes(int rank, int owner) const;

  /// Assembles [rows, cols] from `pieces` [n], those of all ranks that give to `owner`, end to end in the order of
  /// ranks.
  at::Tensor assemble(const at::Tensor& pieces, int owner) const;
  /// Cuts [rows, cols] into the pieces [n] of all ranks that take from `owner`, end to end in the order of ranks.
  /// Padding is zero.
  at::Tensor cut(const at::Tensor& matrix, int owner) const;

 private:
  int num_ranks() const { return static_cast<int>(replicas_->size()); }
  ReplicaMap::Part held(int rank) const { return replicas_->part_of(rank); }
  /// Returns which part of the matrix a tp rank has.
  int64_t part(int64_t tp) const { return over_tp_ ? tp : 0; }
  /// Returns a part's rows or columns, without padding: begin and number.
  Range lines(int64_t part) const;

  const ReplicaMap* replicas_;
  std::vector<int64_t> shape_, local_shape_;  // of the matrix, and of a tp rank's part with its padding
  bool over_tp_;
  int64_t dim_;  // that tp cuts
  int64_t num_parts_ = 1;
  Range in_buffer_;
  int64_t shard_numel_;
};

/// Chooses for each of `matrices` the rank of the world that assembles it, so that ranks have about equal work(): in
/// the order of falling work, each goes to the rank with the least so far, and among those to one that keeps the most
/// of it.
std::vector<int> choose_owners(const std::vector<CutMatrix>& matrices, int num_ranks);

}  // namespace meshtrain
