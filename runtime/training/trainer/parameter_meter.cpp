#include "runtime/training/trainer/parameter_meter.h"

#include <algorithm>
#include <map>
#include <string>

#include "fsdp/shard_memory.h"
#include "mesh/device/aten.h"
#include "runtime/training/trainer/operators/squared_norm.h"
#include "runtime/training/trainer/ownership.h"

namespace meshtrain {

ParameterMeter::ParameterMeter(const ParameterIndex& index, const std::vector<ParameterGroup>& groups,
                               const Group& world)
    : world_(world.with_purpose("parameter_metrics")) {
  std::map<std::string, int64_t> rows;
  for (const ParameterIndex::Entry& entry : index.entries()) {
    if (!entry.trainable) continue;
    rows[entry.name] = static_cast<int64_t>(names_.size());
    names_.push_back(entry.name);
  }
  for (const OwnedRange& range : owned_ranges(groups)) {
    for (const Segment& segment : range.buffer->segments()) {
      const Range kept = range.buffer->in_shard({segment.offset, segment.numel});
      const int64_t begin = std::max(kept.offset, range.offset);
      const int64_t numel = std::min(kept.offset + kept.numel, range.offset + range.numel) - begin;
      if (numel <= 0) continue;
      pieces_.push_back({rows.at(segment.parameter->name), range.buffer->shard_values().narrow(0, begin, numel),
                         range.buffer->shard_gradients().narrow(0, begin, numel)});
    }
  }
  const at::Device device = groups.at(0).fsdp->units().at(0).buffers().at(0).shard_values().device();
  squares_ = at::zeros({static_cast<int64_t>(names_.size()), 3}, at::TensorOptions(device).dtype(at::kDouble));
}

void ParameterMeter::before_update() {
  const at::NoGradGuard no_grad;
  squares_.zero_();
  stream(pieces_, [&](Piece& piece) {
    squares_[piece.row][0].add_(squared_norm(piece.gradients));
    piece.values_before = piece.values.clone();
  });
}

at::Tensor ParameterMeter::after_update() {
  const at::NoGradGuard no_grad;
  stream(pieces_, [&](Piece& piece) {
    squares_[piece.row][1].add_(squared_norm(piece.values));
    squares_[piece.row][2].add_(squared_norm(piece.values - piece.values_before));
    piece.values_before.reset();
  });
  at::Tensor squares = squares_.clone();
  world_.all_reduce(squares).wait();
  return squares;
}

std::vector<ParameterMetrics> ParameterMeter::read(const at::Tensor& squares) const {
  const at::Tensor lengths = squares.sqrt().cpu();
  std::vector<ParameterMetrics> all;
  for (size_t i = 0; i < names_.size(); ++i) {
    const double* of = lengths.const_data_ptr<double>() + 3 * i;
    all.push_back({names_[i], of[0], of[1], of[2]});
  }
  return all;
}

}  // namespace meshtrain
