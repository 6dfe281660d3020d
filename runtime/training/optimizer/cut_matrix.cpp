#include "runtime/training/optimizer/cut_matrix.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "mesh/device/aten.h"

namespace meshtrain {

CutMatrix::CutMatrix(const FlatBuffer& buffer, const Segment& segment, const ReplicaMap& replicas, int64_t index)
    : replicas_(&replicas),
      shape_(segment.parameter->global_shape),
      local_shape_(segment.parameter->shape),
      over_tp_(!segment.parameter->sharded_over.empty() && replicas.num_tp() > 1),
      dim_(segment.parameter->sharded_dim),
      in_buffer_{segment.offset, segment.numel},
      shard_numel_(buffer.shard().numel) {
  if (over_tp_) num_parts_ = replicas.num_tp();
  if (shape_.size() == 2) return;
  const int64_t stacked = segment.parameter->num_matrices;
  if (over_tp_) throw std::invalid_argument(segment.parameter->name + " is a stack that is cut over these ranks");
  in_buffer_ = {segment.offset + index * (segment.numel / stacked), segment.numel / stacked};
  shape_ = local_shape_ = {in_buffer_.numel / shape_.back(), shape_.back()};
}

double CutMatrix::work() const {
  const double shorter = static_cast<double>(std::min(rows(), cols()));
  const double longer = static_cast<double>(std::max(rows(), cols()));
  return shorter * shorter * (2 * longer + shorter);
}

Range CutMatrix::kept(int rank) const {
  const int64_t first = held(rank).shard * shard_numel_ - in_buffer_.offset;
  const int64_t begin = std::clamp<int64_t>(first, 0, in_buffer_.numel);
  const int64_t end = std::clamp<int64_t>(first + shard_numel_, 0, in_buffer_.numel);
  return {begin, end - begin};
}

bool CutMatrix::gives(int rank, int owner) const {
  return takes(rank, owner) && (over_tp_ || held(rank).tp == held(owner).tp);
}

bool CutMatrix::takes(int rank, int owner) const {
  return held(rank).replica == held(owner).replica;
}

Range CutMatrix::lines(int64_t part) const {
  const int64_t extent = shape_[dim_], chunk = local_shape_[dim_];
  const int64_t begin = std::min(chunk * part, extent);
  return {begin, std::min(chunk, extent - begin)};
}

at::Tensor CutMatrix::assemble(const at::Tensor& pieces, int owner) const {
  const at::Tensor locals = at::empty({num_parts_, in_buffer_.numel}, pieces.options());
  int64_t begin = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (!gives(rank, owner)) continue;
    const Range piece = kept(rank);
    locals[part(held(rank).tp)].narrow(0, piece.offset, piece.numel).copy_(pieces.narrow(0, begin, piece.numel));
    begin += piece.numel;
  }
  std::vector<at::Tensor> parts;
  for (int64_t part = 0; part < num_parts_; ++part) {
    parts.push_back(locals[part].view(local_shape_).narrow(dim_, 0, lines(part).numel));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim_);
}

at::Tensor CutMatrix::cut(const at::Tensor& matrix, int owner) const {
  at::Tensor locals = at::zeros({num_parts_, in_buffer_.numel}, matrix.options());
  for (int64_t part = 0; part < num_parts_; ++part) {
    const Range own = lines(part);
    locals[part].view(local_shape_).narrow(dim_, 0, own.numel).copy_(matrix.narrow(dim_, own.offset, own.numel));
  }
  std::vector<at::Tensor> pieces;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (!takes(rank, owner)) continue;
    const Range piece = kept(rank);
    pieces.push_back(locals[part(held(rank).tp)].narrow(0, piece.offset, piece.numel));
  }
  return at::cat(pieces);
}

std::vector<int> choose_owners(const std::vector<CutMatrix>& matrices, int num_ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return matrices[a].work() > matrices[b].work(); });
  std::vector<int> owners(matrices.size());
  std::vector<double> load(static_cast<size_t>(num_ranks), 0);
  for (const size_t matrix : order) {
    const auto rank_before = [&](int a, int b) {
      if (load[a] != load[b]) return load[a] < load[b];
      return matrices[matrix].kept(a).numel > matrices[matrix].kept(b).numel;
    };
    int owner = 0;
    for (int rank = 1; rank < num_ranks; ++rank) {
      if (rank_before(rank, owner)) owner = rank;
    }
    owners[matrix] = owner;
    load[owner] += matrices[matrix].work();
  }
  return owners;
}

}  // namespace meshtrain
