#include "fsdp/gathering.h"

#include <algorithm>

#include "fsdp/lent_memory.h"

namespace meshtrain {

Gathering::Gathering(std::vector<Unit>& units, const FsdpOptions& options, const Sharding& sharding)
    : units_(units),
      group_(options.shards.with_purpose("dp.parameters")),
      whole_(sharding.whole_parameters),
      reshard_(options.reshard_after_forward),
      ahead_(options.prefetch),
      gathered_(units.size()) {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].whole_step()) kept_ = unit;
  }
  if (whole_) return;
  for (Gathered& gathered : gathered_) gathered.state = State::Away;
  const int64_t reach = reshard_ ? ahead_ : static_cast<int64_t>(units.size());
  arena_ = Arena(units, &Unit::parameter_tenant, reach);
}

void Gathering::start(size_t unit) {
  Gathered& gathered = gathered_[unit];
  if (gathered.state != State::Away) return;
  if (!whole_) {
    std::vector<at::Tensor> values;
    for (const FlatBuffer& buffer : units_[unit].buffers()) values.push_back(buffer.values());
    arena_.lend(unit, values);
  }
  for (const FlatBuffer& buffer : units_[unit].buffers()) {
    if (whole_ && !buffer.trainable()) continue;  // it is as it was
    at::Tensor whole = buffer.values(), shard = buffer.shard_values();
    if (shard.scalar_type() != whole.scalar_type()) shard = buffer.values_of_shard().copy_(shard);
    gathered.works.push_back(group_.all_gather(whole, shard));
  }
  gathered.state = State::Coming;
}

void Gathering::prefetch(size_t unit, int step) {
  for (int64_t i = 1; i <= ahead_; ++i) {
    const int64_t next = static_cast<int64_t>(unit) + step * i;
    if (next < 0 || next >= static_cast<int64_t>(units_.size())) return;
    if (step > 0 || gathered_[next].in_backward) start(static_cast<size_t>(next));
  }
}

bool Gathering::need(size_t unit) {
  Gathered& gathered = gathered_[unit];
  if (gathered.state == State::Here) return false;
  start(unit);
  for (const Work& work : gathered.works) work.wait();
  gathered.works.clear();
  gathered.state = State::Here;
  return true;
}

void Gathering::let_go(size_t unit) {
  Gathered& gathered = gathered_[unit];
  if (whole_ || gathered.state == State::Away) return;
  need(unit);  // what is under way must arrive before its memory is another's
  for (const FlatBuffer& buffer : units_[unit].buffers()) take_memory(buffer.values());
  gathered.state = State::Away;
}

void Gathering::before_forward(size_t unit) {
  const bool first_use = need(unit);
  if (first_use || !units_[unit].whole_step()) prefetch(unit, +1);
}

void Gathering::after_forward(size_t unit, bool in_backward) {
  gathered_[unit].in_backward = gathered_[unit].in_backward || in_backward;
  if (units_[unit].whole_step() || (in_backward && (unit == kept_ || !reshard_))) return;
  let_go(unit);
}

void Gathering::before_backward(size_t unit) {
  if (units_[unit].whole_step()) {
    need(unit);
    return;
  }
  for (size_t behind = unit + 1; behind < units_.size(); ++behind) {
    if (!units_[behind].whole_step()) let_go(behind);
  }
  need(unit);
  prefetch(unit, -1);
}

void Gathering::end_backward(bool last) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    gathered_[unit].in_backward = false;
    if (last || !units_[unit].whole_step()) let_go(unit);
  }
}

void Gathering::shards_changed() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (gathered_[unit].state == State::Coming) need(unit);
    let_go(unit);
    const std::vector<FlatBuffer>& buffers = units_[unit].buffers();
    const bool apart = std::any_of(buffers.begin(), buffers.end(),
                                   [](const FlatBuffer& buffer) { return buffer.keeps_values_apart(); });
    if (group_.size() > 1 || apart) gathered_[unit].state = State::Away;
  }
}

}  // namespace meshtrain
