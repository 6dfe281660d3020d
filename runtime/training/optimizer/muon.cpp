#include "runtime/training/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mesh/device/aten.h"
#include "runtime/training/optimizer/newton_schulz.h"

namespace meshtrain {
namespace {

double scale_of(const CutMatrix& matrix, const MuonOptions& options) {
  const double rows = static_cast<double>(matrix.rows()), cols = static_cast<double>(matrix.cols());
  if (options.scale == MuonScale::Original) return options.scale_factor * std::sqrt(std::max(1.0, rows / cols));
  if (options.scale == MuonScale::UnitRmsNorm) return options.scale_factor * std::sqrt(rows / cols);
  const double spectral = options.scale_factor * std::sqrt(std::max(rows, cols));
  return options.scale == MuonScale::Spectral ? spectral : 0.2 * spectral;
}

at::TensorOptions options_on_the_way(const at::Tensor& values) {
  return values.options().dtype(values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

/// Returns true when the group's parameters are stacks of matrices, of which the ranks hold different ones: each rank's
/// matrices are then complete among the ranks that hold the same.
bool cuts_stacks(const ParameterGroup& group) {
  const Parameter& parameter = *group.fsdp->units().front().parameters().front();
  return parameter.shape.size() > 2 && !parameter.sharded_over.empty();
}

int64_t sum(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  return total;
}

}  // namespace

Muon::Muon(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
           const std::optional<StochasticRounding>& rounding)
    : Optimizer(groups), options_(options), others_(options, groups, rounding) {
  for (const ParameterGroup& group : groups) parts_.emplace_back(options, group);
  std::vector<StatePager::State> momentum;
  for (const Part& part : parts_) {
    for (const Round& round : part.rounds) {
      for (const Matrix* matrix : round) momentum.push_back({matrix->momentum});
    }
  }
  pager_ = make_state_pager(groups, momentum, /*cuts=*/false);
}

Muon::Part::Part(const OptimizerOptions& options, const ParameterGroup& group)
    : replicas(cuts_stacks(group) ? group.replicas.own_part() : group.replicas),
      world(replicas.world().with_purpose("optimizer")),
      holders(replicas.replicas().with_purpose("optimizer")),
      rank(world.rank()) {
  for (const FlatBuffer* buffer : trainable_buffers(group.fsdp->units())) {
    for (const Segment& segment : buffer->segments()) {
      const UpdateRule rule = rule_of(*segment.parameter, options);
      if (!rule.full_matrix) continue;
      for (int64_t index = 0; index < segment.parameter->num_matrices; ++index) {
        const CutMatrix layout(*buffer, segment, replicas, index);
        const Range kept = buffer->in_shard(layout.in_buffer());
        const at::Tensor values = buffer->shard_values().narrow(0, kept.offset, kept.numel);
        matrices.push_back({layout, rule, scale_of(layout, options.muon), 0, buffer, kept, values,
                            buffer->shard_gradients().narrow(0, kept.offset, kept.numel),
                            zero_state(options, group, values)});
      }
    }
  }
  make_rounds();
}

void Muon::Part::make_rounds() {
  std::vector<CutMatrix> layouts;
  for (const Matrix& matrix : matrices) layouts.push_back(matrix.layout);
  const std::vector<int> owners = choose_owners(layouts, world.size());
  std::vector<const Matrix*> order;
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].owner = owners[i];
    order.push_back(&matrices[i]);
  }
  // Each owner's largest first, so that the matrices of a round are about as large.
  std::stable_sort(order.begin(), order.end(),
                   [](const Matrix* a, const Matrix* b) { return a->layout.work() > b->layout.work(); });
  std::vector<size_t> num_owned(static_cast<size_t>(world.size()), 0);
  for (const Matrix* matrix : order) {
    const size_t round = num_owned[static_cast<size_t>(matrix->owner)]++;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(matrix);
  }
  for (Round& round : rounds) {
    std::sort(round.begin(), round.end(), [](const Matrix* a, const Matrix* b) { return a->owner < b->owner; });
  }
}

void Muon::update(const UpdateInputs& inputs) {
  others_.step(inputs);
  if (is_true(inputs.skip)) return;
  const double learning_rate = host_value(inputs.learning_rate);
  if (pager_) pager_->begin();
  for (const Part& part : parts_) update(part, inputs.gradient_factor, learning_rate);
}

void Muon::update(const Part& part, const at::Tensor& gradient_factor, double learning_rate) {
  const std::vector<Round>& rounds = part.rounds;
  MatrixGather next;
  if (!rounds.empty()) next = gather(part, rounds[0], gradient_factor);
  for (size_t i = 0; i < rounds.size(); ++i) {
    const Round& round = rounds[i];
    const MatrixGather now = std::exchange(next, {});
    if (i + 1 < rounds.size()) next = gather(part, rounds[i + 1], gradient_factor);
    const at::Tensor own_copys = scatter(part, round, now);
    for (int64_t replica = 0; replica < part.holders.size(); ++replica) {
      std::vector<const Matrix*> matrices;
      int64_t numel = 0;
      for (const Matrix* matrix : round) {
        if (part.replicas.part_of(matrix->owner).replica != replica) continue;
        matrices.push_back(matrix);
        numel += matrix->values.numel();
      }
      if (numel == 0) continue;
      at::Tensor updates =
          replica == part.replicas.part().replica ? own_copys : at::empty({numel}, own_copys.options());
      part.holders.broadcast(updates, static_cast<int>(replica)).wait();
      int64_t begin = 0;
      for (const Matrix* matrix : matrices) {
        apply(*matrix, updates.narrow(0, begin, matrix->values.numel()), learning_rate * matrix->rule.rate);
        begin += matrix->values.numel();
      }
    }
  }
}

std::vector<StatePager*> Muon::pagers() const {
  std::vector<StatePager*> all = others_.pagers();
  if (pager_) all.push_back(pager_.get());
  return all;
}

std::vector<ShardTensor> Muon::state() const {
  std::vector<ShardTensor> state = others_.state();
  for (const Part& part : parts_) {
    for (const Matrix& matrix : part.matrices) {
      state.push_back({"momentum", matrix.buffer, matrix.range, matrix.momentum});
    }
  }
  return state;
}

void Muon::resume(int64_t num_steps) {
  Optimizer::resume(num_steps);
  others_.resume(num_steps);
}

void Muon::with_momentum(const Matrix& matrix, const std::function<void(const at::Tensor& momentum)>& use) {
  if (!pager_) return use(matrix.momentum);
  pager_->update_next([&](size_t, Range, const StatePager::State& state) { use(state[0]); });
}

Muon::MatrixGather Muon::gather(const Part& part, const Round& round, const at::Tensor& gradient_factor) {
  const auto num_ranks = static_cast<size_t>(part.replicas.size());
  std::vector<int64_t> sent(num_ranks, 0), received(num_ranks, 0);
  const at::TensorOptions options = options_on_the_way(round.front()->values);
  std::vector<at::Tensor> pieces = {at::empty({0}, options)};
  for (const Matrix* matrix : round) {
    if (gradient_factor.defined()) at::Tensor(matrix->gradients).mul_(gradient_factor);
    with_momentum(*matrix, [&](const at::Tensor& momentum) {
      const at::Tensor velocity = at::Tensor(momentum).mul_(options_.momentum).add_(matrix->gradients);
      if (!matrix->layout.gives(part.rank, matrix->owner)) return;
      pieces.push_back(velocity.to(options.dtype()));
      if (options_.muon.nesterov) {
        pieces.back() = at::add(matrix->gradients.to(options.dtype()), pieces.back(), options_.momentum);
      } else if (pager_) {
        pieces.back() = pieces.back().clone();  // the pager uses its memory again
      }
      sent[static_cast<size_t>(matrix->owner)] = velocity.numel();
    });
    set_aside(matrix->momentum);
    set_aside(matrix->gradients);
    if (matrix->owner != part.rank) continue;
    for (int rank = 0; rank < part.world.size(); ++rank) {
      if (matrix->layout.gives(rank, part.rank)) received[static_cast<size_t>(rank)] = matrix->layout.kept(rank).numel;
    }
  }
  MatrixGather gathered{at::cat(pieces), at::empty({sum(received)}, options), {}};
  gathered.work = part.world.all_to_all(gathered.received, received, gathered.sent, sent);
  return gathered;
}

at::Tensor Muon::scatter(const Part& part, const Round& round, const MatrixGather& gathered) {
  const auto num_ranks = static_cast<size_t>(part.replicas.size());
  std::vector<int64_t> sent(num_ranks, 0), received(num_ranks, 0);
  gathered.work.wait();
  at::Tensor pieces = at::empty({0}, gathered.received.options());
  for (const Matrix* matrix : round) {
    if (matrix->layout.takes(part.rank, matrix->owner)) {
      received[static_cast<size_t>(matrix->owner)] = matrix->values.numel();
    }
    if (matrix->owner != part.rank) continue;
    const at::Tensor full = matrix->layout.assemble(gathered.received, part.rank);
    pieces = matrix->layout.cut(
        newton_schulz(full, options_.muon.newton_schulz_steps, options_.muon.coefficients).mul_(matrix->scale),
        part.rank);
    for (int rank = 0; rank < part.world.size(); ++rank) {
      if (matrix->layout.takes(rank, part.rank)) sent[static_cast<size_t>(rank)] = matrix->layout.kept(rank).numel;
    }
  }
  at::Tensor updates = at::empty({sum(received)}, pieces.options());
  part.world.all_to_all(updates, received, pieces, sent).wait();
  return updates;
}

void Muon::apply(const Matrix& matrix, const at::Tensor& update, double learning_rate) {
  at::Tensor change = update.mul(-learning_rate);
  const double decay = matrix.rule.weight_decay;
  if (decay != 0) change.add_(matrix.values.to(change.scalar_type()), -learning_rate * decay);
  at::Tensor(matrix.values).add_(change);  // rounded once
  set_aside(matrix.values);
}

}  // namespace meshtrain
