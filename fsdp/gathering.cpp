#include "fsdp/gathering.h"

#include <algorithm>
#include <utility>

namespace meshtrain {

Gathering::Gathering(std::vector<Unit>& units, const FsdpOptions& options, const Group& shards, const Arena& memory)
    : units_(units),
      group_(shards.with_purpose("dp.parameters")),
      memory_(memory),
      lets_go_(cuts_units(options, memory.device()) && options.mode == ShardingMode::FullShard),
      reshard_(options.reshard_after_forward),
      ahead_(options.prefetch),
      gathers_(units.size()) {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].whole_step()) kept_ = unit;
  }
  if (options.memory.leaves(device_of(units))) transfer_.emplace(units, options.memory);
  shards_changed({.frozen = true});
}

void Gathering::start(size_t unit) {
  UnitGather& gather = gathers_[unit];
  if (gather.state != State::Away) return;
  memory_.lend(unit);
  if (transfer_) transfer_->wait_for_current();  // other units may still compute with this memory
  for (const FlatBuffer& buffer : units_[unit].buffers()) {
    if (!lets_go_ && !buffer.trainable() && !gather.frozen_stale) continue;  // frozen parameters have not changed
    if (transfer_) {
      start_offloaded(buffer, gather);
      continue;
    }
    at::Tensor full = buffer.values(), shard = buffer.shard_values();
    if (shard.scalar_type() != full.scalar_type()) {
      const bool stale = buffer.trainable() ? gather.stale : gather.frozen_stale || memory_.is_reused();
      if (stale) buffer.values_of_shard().copy_(shard);
      shard = buffer.values_of_shard();
    }
    gather.works.push_back(group_.all_gather(full, shard));
  }
  if (transfer_) gather.copied = transfer_->mark();
  gather.stale = memory_.is_reused() && !transfer_;
  gather.frozen_stale = false;
  gather.state = State::Coming;
}

void Gathering::start_offloaded(const FlatBuffer& buffer, UnitGather& gather) {
  at::Tensor shard = buffer.shard_values(), full = buffer.values();
  if (at::Tensor rounded = buffer.rounded_shard(); rounded.defined()) {
    if (buffer.trainable() ? gather.stale : gather.frozen_stale) rounded.copy_(shard);
    shard = rounded;
  }
  const at::Tensor own = buffer.values_of_shard();
  transfer_->copy_in(own, shard);
  transfer_->then([&] { gather.works.push_back(group_.all_gather(full, own)); });
}

void Gathering::settle() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (gathers_[unit].state != State::Coming) continue;
    need(unit);
  }
}

void Gathering::finish_copies() {
  if (transfer_) transfer_->finish();
}

void Gathering::prefetch(size_t unit, int step) {
  for (int64_t i = 1; i <= ahead_ + 1; ++i) {
    const int64_t next = static_cast<int64_t>(unit) + step * i;
    if (next < 0 || next >= static_cast<int64_t>(units_.size())) return;
    if (step < 0 && !gathers_[next].in_backward) continue;
    if (i <= ahead_) {
      start(static_cast<size_t>(next));
    } else if (gathers_[next].state == State::Away) {
      for (const FlatBuffer& buffer : units_[next].buffers()) {
        const at::Tensor rounded = transfer_ ? buffer.rounded_shard() : at::Tensor();
        fetch_ahead(rounded.defined() ? rounded : buffer.shard_values());
      }
    }
  }
}

void Gathering::evict_others(int64_t first, int64_t last) {
  for (int64_t unit = 0; unit < static_cast<int64_t>(units_.size()); ++unit) {
    if ((unit < first || unit > last) && !units_[unit].whole_step()) let_go(static_cast<size_t>(unit));
  }
}

bool Gathering::need(size_t unit) {
  UnitGather& gather = gathers_[unit];
  if (gather.state == State::Here) return false;
  start(unit);
  gather.copied.wait();  // before the collectives that follow the copies, so that the copies' time counts as theirs
  for (const Work& work : gather.works) work.wait();
  gather.works.clear();
  for (const FlatBuffer& buffer : units_[unit].buffers()) set_aside(buffer.shard_values());
  gather.state = State::Here;
  return true;
}

void Gathering::let_go(size_t unit) {
  UnitGather& gather = gathers_[unit];
  if (!lets_go_ || gather.state == State::Away) return;
  need(unit);  // a gather in flight must end before its memory is lent again
  memory_.take_back(unit);
  gather.state = State::Away;
}

bool Gathering::has_lent() const {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].whole_step() && gathers_[unit].state != State::Away) return true;
  }
  return false;
}

void Gathering::before_forward(size_t unit) {
  // Reused memory assumes the order of the list: a unit used out of order may share memory with one still gathered.
  const auto here = static_cast<int64_t>(unit);
  if (!units_[unit].whole_step() && reuses_memory()) evict_others(here, here + ahead_);
  const bool first_use = need(unit), begins = first_use && !(reuses_memory() && has_lent());
  if (begins || !units_[unit].whole_step()) prefetch(unit, +1);
}

void Gathering::after_forward(size_t unit, bool in_backward) {
  gathers_[unit].in_backward = gathers_[unit].in_backward || in_backward;
  if (units_[unit].whole_step() || (in_backward && (unit == kept_ || !reshard_))) return;
  let_go(unit);
}

void Gathering::expect_backward(size_t unit) {
  gathers_[unit].in_backward = true;
}

void Gathering::before_backward(size_t unit) {
  if (units_[unit].whole_step()) {
    need(unit);
    return;
  }
  const auto here = static_cast<int64_t>(unit);
  evict_others(reuses_memory() ? here - ahead_ : 0, here);
  need(unit);
  prefetch(unit, -1);
}

void Gathering::end_backward(bool last) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    // Until the last backward of a step others may follow it, as at the end of a pipeline's schedule.
    if (last) gathers_[unit].in_backward = false;
    if (last || !units_[unit].whole_step()) let_go(unit);
  }
}

void Gathering::forget_gathered() {
  if (group_.size() == 1) return;
  for (UnitGather& gather : gathers_) {
    if (gather.state == State::Here) gather.state = State::Away;
  }
}

void Gathering::make_stale(size_t unit, const ShardChange& change) {
  if (change.frozen) gathers_[unit].frozen_stale = true;
  if (gathers_[unit].state == State::Coming) need(unit);
  let_go(unit);
  const std::vector<FlatBuffer>& buffers = units_[unit].buffers();
  const bool apart =
      std::any_of(buffers.begin(), buffers.end(), [](const FlatBuffer& buffer) { return buffer.keeps_values_apart(); });
  if (group_.size() > 1 || apart) gathers_[unit].state = State::Away;
  // A skipped step does not round slices that were stale before it.
  const bool was_stale = transfer_ && gathers_[unit].stale;
  gathers_[unit].stale = !change.rounded || (memory_.is_reused() && !transfer_) || was_stale;
}

void Gathering::unit_changed(size_t unit, bool rounded) {
  make_stale(unit, {.rounded = rounded});
  gathers_[unit].changed = true;
  if (!memory_.is_reused() || static_cast<int64_t>(unit) <= ahead_) start(unit);
}

void Gathering::shards_changed(const ShardChange& change) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!std::exchange(gathers_[unit].changed, false) || change.frozen) make_stale(unit, change);
    if (group_.size() == 1 && !lets_go_) need(unit);  // also for units that are used without run()
  }
}

}  // namespace meshtrain
