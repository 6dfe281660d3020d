#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "mesh/replica_map.h"

namespace meshtrain {

/// Where the elements of one matrix are: cut over tp by rows or columns, what a tp rank has laid flat and cut anywhere
/// over the shards of its buffer, and that kept by several ranks alike. One of them, its owner, may have it whole: the
/// ranks of the owner's copy give it their pieces and take theirs of what it makes of them. Arithmetic alone: the same
/// on every rank, but for the parameter's own tensor, which is not looked at.
class CutMatrix {
 public:
  /// `segment` of `buffer` is a matrix; `replicas` outlives this.
  CutMatrix(const FlatBuffer& buffer, const Segment& segment, const ReplicaMap& replicas);

  int64_t rows() const { return shape_[0]; }
  int64_t cols() const { return shape_[1]; }
  /// Multiplications of one step of newton_schulz().
  double work() const;

  /// What `rank` of the world keeps: elements of its tp rank's part, laid flat; perhaps none.
  Range kept(int rank) const;
  /// Whether `rank` sends what it keeps to `owner`.
  bool gives(int rank, int owner) const;
  /// Whether `rank` gets back from `owner` what it keeps; other copies get it from those who do.
  bool takes(int rank, int owner) const;

  /// `pieces` [n] of those who give to `owner`, end to end in the order of ranks -> [rows, cols]
  at::Tensor assemble(const at::Tensor& pieces, int owner) const;
  /// [rows, cols] -> [n]: the pieces of those who take from `owner`, end to end in the order of ranks. Padding is zero.
  at::Tensor cut(const at::Tensor& matrix, int owner) const;

 private:
  int num_ranks() const { return static_cast<int>(replicas_->size()); }
  ReplicaMap::Part held(int rank) const { return replicas_->part_of(rank); }
  /// Which of the local tensors is that of a tp rank.
  int64_t part(int64_t tp) const { return over_tp_ ? tp : 0; }
  /// A tp rank's rows or columns, without padding: begin and number.
  Range lines(int64_t part) const;

  const ReplicaMap* replicas_;
  std::vector<int64_t> shape_, local_shape_;  // of the matrix, and of a tp rank's part with its padding
  bool over_tp_;
  int64_t dim_;  // that tp cuts
  int64_t num_parts_ = 1;
  Range in_buffer_;
  int64_t shard_numel_;
};

/// For each of `matrices` a rank of the world that has it whole, so that ranks have about equal work(): the most work
/// first, each to whoever has the least so far, and among those to one that keeps the most of it.
std::vector<int> choose_owners(const std::vector<CutMatrix>& matrices, int num_ranks);

}  // namespace meshtrain
