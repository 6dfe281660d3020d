#include "fsdp/reduction.h"

#include <stdexcept>

namespace meshtrain {
namespace {

std::logic_error lacks_deferred(const Unit& unit) {
  return std::logic_error("unit " + unit.name() +
                          " would be reduced before its deferred gradients are computed: call begin_backward(false) "
                          "for each backward and begin_deferred() after the last, and give gradients memory for a "
                          "complete step (accumulate_unsharded)");
}

}  // namespace

Reduction::Reduction(std::vector<Unit>& units, const FsdpOptions& options, const Arena& memory)
    : units_(units),
      shards_(options.shards.with_purpose("dp.gradients")),
      replicas_(options.replicas.with_purpose("dp.gradients")),
      remaining_(options.remaining),
      remaining_partial_(options.remaining_partial),
      in_flight_(sums_in_flight(options)),
      memory_(memory),
      full_(!memory.is_reused()),
      lent_(units.size(), false) {
  if (options.memory.leaves(device_of(units))) stage_.emplace(units, options);
}

void Reduction::begin_step() {
  first_ = true;
  if (!full_) return;
  for (Unit& unit : units_) {
    for (FlatBuffer* buffer : unit.trainable()) buffer->forget_gradients();
  }
}

void Reduction::begin_backward(bool last) {
  last_ = last;
  reducing_ = last || !full_;
  next_ = static_cast<int64_t>(units_.size()) - 1;
  forget_failed();
  for (Unit& unit : units_) unit.begin_backward();
}

// One that has not thrown leaves nothing. Sums under way still read and write memory that is lent again.
void Reduction::forget_failed() {
  for (std::deque<UnitScatter>* sums : {&scattering_, &summing_, &remaining_sums_}) {
    for (const UnitScatter& sum : *sums) {
      for (const Work& work : sum.works) work.wait();
    }
    sums->clear();
  }
  if (stage_) stage_->forget();
  for (size_t unit = 0; unit < units_.size(); ++unit) let_go(unit);
}

void Reduction::lend(size_t unit) {
  if (full_ || lent_[unit]) return;
  memory_.lend(unit);
  lent_[unit] = true;
}

// Two units have memory: this one, and the one after it, which is being reduced. issue_next() has finished others.
void Reduction::lend_anew(size_t unit) {
  lend(unit);
  for (FlatBuffer* buffer : units_[unit].trainable()) buffer->forget_gradients();
}

void Reduction::complete(size_t unit) {
  for (FlatBuffer* buffer : units_[unit].trainable()) buffer->complete_gradients();
}

void Reduction::let_go(size_t unit) {
  if (full_ || !lent_[unit]) return;
  memory_.take_back(unit);
  lent_[unit] = false;
}

void Reduction::before_backward(size_t unit) {
  if (full_ || lent_[unit] || static_cast<int64_t>(unit) > next_) return;
  if (!units_[unit].whole_step()) {
    while (next_ > static_cast<int64_t>(unit)) issue_next();
  }
  if (units_[unit].num_trainable() > 0) lend_anew(unit);
}

void Reduction::expect_open(size_t unit) const {
  if (!reducing_ || static_cast<int64_t>(unit) <= next_) return;
  throw std::logic_error(
      "unit " + units_[unit].name() +
      " has a gradient after its reduction has begun: its parameters are used before those of "
      "earlier units; list units in the order of their use, or leave it out of `units` (UnitSpec::whole_step)");
}

void Reduction::count_final(size_t unit) {
  expect_open(unit);
  if (units_[unit].count_final() && reducing_) issue_complete();
}

void Reduction::issue_complete() {
  while (next_ >= 0 && units_[next_].complete()) issue_next();
}

void Reduction::begin_deferred() {
  begin_backward(/*last=*/true);
  for (Unit& unit : units_) {
    for (int64_t i = unit.num_trainable() - unit.num_deferred(); i > 0; --i) unit.count_final();
  }
  issue_complete();
}

void Reduction::issue_next() {
  const size_t unit = static_cast<size_t>(next_--);
  if (units_[unit].num_trainable() == 0) return;  // and no wait: the reduction of the unit after it is still in flight
  if (units_[unit].num_deferred() > 0) throw lacks_deferred(units_[unit]);
  if (!full_ && !lent_[unit]) lend_anew(unit);  // it had no backward here
  complete(unit);
  UnitScatter scatter{unit, {}};
  for (FlatBuffer* buffer : units_[unit].trainable()) {
    at::Tensor shard = buffer->gradients_of_shard();
    scatter.works.push_back(shards_.reduce_scatter(shard, buffer->gradients()));
    if (!stage_) fetch_ahead(buffer->shard_gradients());
  }
  if (stage_) stage_->enter(unit, /*adds=*/!first_);
  scattering_.push_back(std::move(scatter));
  // The previous reduction had one unit's backward to overlap with; with one rank there is nothing to overlap.
  while (scattering_.size() > in_flight_.over_shards) finish_scatter();
  while (summing_.size() > in_flight_.over_replicas) finish_sum();
  while (stage_ && remaining_sums_.size() > in_flight_.remaining) finish_remaining();
}

at::Tensor Reduction::shard_of(size_t unit, FlatBuffer& buffer) {
  return stage_ ? stage_->gradients(unit, buffer) : buffer.shard_gradients();
}

void Reduction::finish_scatter() {
  const UnitScatter scatter = std::move(scattering_.front());
  scattering_.pop_front();
  for (const Work& work : scatter.works) work.wait();
  for (FlatBuffer* buffer : units_[scatter.unit].trainable()) {
    if (sums_full(*buffer)) continue;
    at::Tensor shard = shard_of(scatter.unit, *buffer);
    if (buffer->keeps_gradients_apart()) {
      const at::Tensor own = buffer->gradients_of_shard();
      first_ ? shard.copy_(own) : shard.add_(own);
    }
    set_aside(shard);
  }
  let_go(scatter.unit);
  if (!last_) {  // more micro-batches will be added to these shards
    if (stage_) stage_->leave(scatter.unit, {});
    return;
  }
  UnitScatter sum{scatter.unit, {}};
  for (FlatBuffer* buffer : units_[scatter.unit].trainable()) {
    at::Tensor gradients = sums_full(*buffer) ? buffer->gradients() : shard_of(scatter.unit, *buffer);
    sum.works.push_back(replicas_.all_reduce(gradients));
  }
  summing_.push_back(std::move(sum));
}

void Reduction::finish_sum() {
  const UnitScatter sum = std::move(summing_.front());
  summing_.pop_front();
  for (const Work& work : sum.works) work.wait();
  UnitScatter remaining{sum.unit, {}};
  for (FlatBuffer* buffer : units_[sum.unit].trainable()) {
    const at::Tensor shard = shard_of(sum.unit, *buffer);
    if (sums_full(*buffer)) shard.copy_(buffer->gradients());
    // The two parts are disjoint, and their sums run at the same time.
    const int64_t partial = buffer->partial_numel();
    sum_remaining(*buffer, shard, {0, partial}, remaining_partial_, remaining.works);
    sum_remaining(*buffer, shard, {partial, buffer->numel() - partial}, remaining_, remaining.works);
  }
  remaining_sums_.push_back(std::move(remaining));
}

void Reduction::finish_remaining() {
  const UnitScatter sum = std::move(remaining_sums_.front());
  remaining_sums_.pop_front();
  for (const Work& work : sum.works) work.wait();
  if (stage_) stage_->leave(sum.unit, on_reduced_);
}

void Reduction::sum_remaining(const FlatBuffer& buffer, const at::Tensor& gradients, Range range, const Group& group,
                              std::vector<Work>& works) {
  const Range kept = buffer.in_shard(range);
  if (kept.numel == 0 || group.size() == 1) return;
  at::Tensor part = gradients.narrow(0, kept.offset, kept.numel);
  works.push_back(group.all_reduce(part));
}

// Gradients that are full on every replica are summed in their own dtype, then converted to that of the shard.
bool Reduction::sums_full(const FlatBuffer& buffer) const {
  return full_ && shards_.size() == 1 && buffer.keeps_gradients_apart();
}

void Reduction::end_backward() {
  if (reducing_) {
    while (next_ >= 0) issue_next();
    while (!scattering_.empty()) finish_scatter();
    while (!summing_.empty()) finish_sum();
    while (!remaining_sums_.empty()) finish_remaining();
    first_ = false;
  } else {
    for (size_t unit = 0; unit < units_.size(); ++unit) complete(unit);
  }
  reducing_ = false;
}

void Reduction::finish_copies() {
  if (stage_) stage_->finish();
}

}  // namespace meshtrain
