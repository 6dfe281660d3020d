#include "fsdp/fsdp.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "fsdp/gathering.h"
#include "fsdp/reduction.h"
#include "fsdp/uses.h"
#include "mesh/device/gradient_state.h"
#include "mesh/flight_recorder.h"

namespace meshtrain {
namespace {

Sharding sharding_of(const FsdpOptions& options, at::Device device) {
  Sharding sharding;
  sharding.shard_dtype = options.shard_dtype;
  sharding.frozen_dtype = options.frozen_dtype;
  sharding.gradient_dtype = options.reduce_dtype;
  sharding.memory = options.memory;
  sharding.full_gradients = keeps_full_gradients(options, device);
  if (!cuts_units(options, device)) return sharding;
  sharding.num_shards = options.shards.size();
  sharding.index = options.shards.rank();
  return sharding;
}

void check(const std::vector<UnitSpec>& units) {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].parameters.empty()) throw std::invalid_argument("unit " + units[unit].name + " has no parameters");
    if (unit > 0 && units[unit].whole_step && !units[unit - 1].whole_step) {
      throw std::invalid_argument("unit " + units[unit].name + " has UnitSpec::whole_step but comes after " +
                                  units[unit - 1].name + ": put it before the others");
    }
  }
}

/// Returns a copy of the parameter of `segment`. Its tensor is a view of `full`, which is laid out like the buffer.
Parameter parameter_in(const at::Tensor& full, const Segment& segment) {
  Parameter parameter = *segment.parameter;
  parameter.tensor = full.narrow(0, segment.offset, segment.numel).view(parameter.shape);
  return parameter;
}

std::logic_error written_by_others(const Parameter& parameter) {
  return std::logic_error(
      parameter.name +
      " has a gradient, but not from the layer that writes it: use it in that layer alone, or leave "
      "Parameter::written_by_layer false");
}

/// Returns the storage of `tensor`; null when it is undefined.
const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

std::logic_error elsewhere(const Parameter& parameter) {
  return std::logic_error(parameter.name +
                          " has a gradient in its own memory, which is not reduced: remove zero_grad(), since a step "
                          "begins with zero gradients, and call backward() without create_graph");
}

std::logic_error writes_parameters(const std::string& called, const Unit& unit) {
  return std::logic_error(called + " writes parameters of the unit " + unit.name() +
                          " inside the module, and shards would keep old values: remove that operator (max_norm of an "
                          "Embedding), or change parameters between steps by Fsdp::write_values()");
}

std::logic_error without_gradient(const Unit& unit) {
  return std::logic_error("the forward uses parameters of the unit " + unit.name() +
                          ", but its result has no gradient: leave NoGradGuard, detach() and item() out of the "
                          "forward; to evaluate, call it under a NoGradGuard");
}

std::logic_error trained_otherwise(const Parameter& parameter, bool trainable) {
  return std::logic_error(parameter.name + " was made " + (trainable ? "frozen" : "trainable") +
                          " after Fsdp took it: set requires_grad first, then wrap the module again");
}

/// The work of a run() of this thread, for the time of its forward. The work of a run() inside it is shown only while
/// that one lasts.
class RunWork {
 public:
  explicit RunWork(std::string work) : outer_(std::exchange(innermost(), std::move(work))) {}
  ~RunWork() {
    if (!outer_.empty()) FlightRecorder::own().set_work(outer_);
    innermost() = outer_;
  }
  RunWork(const RunWork&) = delete;
  RunWork& operator=(const RunWork&) = delete;

 private:
  static std::string& innermost() {
    thread_local std::string work;
    return work;
  }

  std::string outer_;
};

std::vector<Unit> make_units(std::vector<UnitSpec> specs, const FsdpOptions& options) {
  check(specs);
  const at::Device device = specs.front().parameters.front()->tensor.device();
  if (options.state_memory && options.memory.leaves(device) && !options.state_memory->leaves(device)) {
    throw std::invalid_argument(
        "shards are offloaded, but the optimizer's state is on the device: do not set FsdpOptions::state_memory");
  }
  const Sharding sharding = sharding_of(options, device);
  std::vector<Unit> units;
  units.reserve(specs.size());  // hooks keep references
  for (UnitSpec& spec : specs) units.emplace_back(std::move(spec), sharding);
  return units;
}

}  // namespace

struct Fsdp::State {
  State(std::vector<UnitSpec> specs, const FsdpOptions& options)
      : group(options.shards),
        gathers(gathers_beside_reductions(options.mode) && group.size() > 1 ? group.second_queue() : group),
        shard_memory(options.memory),
        state_memory(options.state_memory.value_or(options.memory)),
        units(make_units(std::move(specs), options)),
        memory(units, options),
        gathering(units, options, gathers, memory.parameters),
        reduction(units, options, memory.gradients) {}

  Group group;
  Group gathers;
  ShardMemory shard_memory, state_memory;
  std::vector<Unit> units;
  UnitMemory memory;
  Gathering gathering;
  Reduction reduction;
  bool last = false;  // backward of the step
  // The state of run(forward), whose forward does not name the units that it uses.
  std::optional<UnitStorages> storages;
  std::optional<WatchedUses> backward_uses;
  std::optional<size_t> current;  // the unit in use in this forward or backward; never one with whole_step
  std::set<size_t> used;          // units of this forward

  /// Waits for gathers that unit_changed() started and no pass has used, unless an exception destroys this.
  ~State() {
    if (std::uncaught_exceptions() > 0) return;
    try {
      gathering.settle();
    } catch (const std::exception&) {  // the next use of the group throws it
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string work_of(const char* pass, size_t unit) const { return std::string(pass) + " of " + units[unit].name(); }

  void enter(const char* pass, size_t unit) const { FlightRecorder::own().set_work(work_of(pass, unit)); }

  void before_backward(size_t unit) {
    const UnwatchedUses own;
    enter("backward", unit);
    gathering.before_backward(unit);
    reduction.before_backward(unit);
  }

  /// Returns true when `unit` is not the one in use; units with whole_step do not count.
  bool changes_to(size_t unit) const { return !units[unit].whole_step() && current != unit; }

  /// Returns the units of `uses`, each once. Throws std::logic_error when the operator writes parameters, or uses
  /// several units without whole_step: reused memory may have room for only one of them.
  std::vector<size_t> units_of(const std::string& called, const std::vector<UnitUse>& uses) const {
    std::vector<size_t> all;
    std::optional<size_t> first;
    for (const UnitUse& use : uses) {
      if (use.is_written && !use.is_gradient) throw writes_parameters(called, units[use.unit]);
      if (std::ranges::find(all, use.unit) != all.end()) continue;
      all.push_back(use.unit);
      if (units[use.unit].whole_step()) continue;
      if (first) {
        throw std::logic_error(called + " takes tensors of the units " + units[*first].name() + " and " +
                               units[use.unit].name() + ": make them one unit, or leave both out of the list of units");
      }
      first = use.unit;
    }
    return all;
  }

  void use_in_forward(size_t unit) {
    if (changes_to(unit)) {
      leave_forward();
      enter("forward", unit);
      current = unit;
    } else if (!units[unit].whole_step()) {
      return;
    }
    gathering.before_forward(unit);
    used.insert(unit);
  }

  void leave_forward() {
    if (current) gathering.after_forward(*current, at::GradMode::is_enabled());
    current.reset();
  }

  /// Also called for a forward that is computed again inside the backward, with GradMode on: it has no gradients yet.
  void use_in_backward(size_t unit) {
    if (changes_to(unit) || units[unit].whole_step()) {
      enter("backward", unit);
      gathering.before_backward(unit);
      if (!units[unit].whole_step()) current = unit;
    }
    if (!at::GradMode::is_enabled()) reduction.before_backward(unit);
  }
};

Fsdp::Fsdp(std::vector<UnitSpec> units, FsdpOptions options) {
  if (options.mode == ShardingMode::NoShard) options.shards = Group();
  state_ = std::make_shared<State>(std::move(units), options);
  for (size_t unit = 0; unit < state_->units.size(); ++unit) {
    for (Parameter* parameter : state_->units[unit].parameters()) {
      if (!parameter->tensor.requires_grad()) continue;
      std::weak_ptr<State> state = state_;
      const c10::StorageImpl* const memory = storage_of(parameter->tensor.grad());
      GradientState::attach(parameter->tensor, [state, unit, parameter, memory] {
        const auto alive = state.lock();
        if (!alive) return;
        const UnwatchedUses own;
        if (storage_of(parameter->tensor.grad()) != memory) throw elsewhere(*parameter);
        if (!GradientState::of(parameter->tensor)->written()) throw written_by_others(*parameter);
        alive->reduction.count_final(unit);
      });
    }
  }
}

Fsdp::~Fsdp() = default;

const std::vector<Unit>& Fsdp::units() const {
  return state_->units;
}

const ShardMemory& Fsdp::shard_memory() const {
  return state_->shard_memory;
}

const ShardMemory& Fsdp::state_memory() const {
  return state_->state_memory;
}

bool Fsdp::is_offloaded() const {
  return state_->shard_memory.leaves(device_of(state_->units));
}

bool Fsdp::pages_state() const {
  return state_->state_memory.leaves(device_of(state_->units)) && !is_offloaded();
}

void Fsdp::on_reduced(OnReduced function) {
  state_->reduction.on_reduced(std::move(function));
}

void Fsdp::finish_copies() {
  state_->gathering.finish_copies();
  state_->reduction.finish_copies();
}

void Fsdp::unit_changed(size_t unit, bool rounded) {
  if (is_offloaded()) state_->gathering.unit_changed(unit, rounded);
}

CopyCosts Fsdp::copy_costs() const {
  const GradientStage* const stage = state_->reduction.stage();
  return state_->gathering.copy_costs() + (stage != nullptr ? stage->copy_costs() : CopyCosts{});
}

int64_t Fsdp::stage_bytes() const {
  const GradientStage* const stage = state_->reduction.stage();
  return stage != nullptr ? stage->bytes() : 0;
}

const UnitMemory& Fsdp::memory() const {
  return state_->memory;
}

at::Tensor Fsdp::run(size_t unit, const std::function<at::Tensor()>& forward) {
  const bool is_recomputed = torch::autograd::get_current_graph_task_id() != -1;
  const RunWork work(state_->work_of(is_recomputed ? "backward" : "forward", unit));
  if (is_recomputed) {
    state_->before_backward(unit);
    return forward();
  }
  state_->enter("forward", unit);
  state_->gathering.before_forward(unit);
  const at::Tensor output = forward();
  const bool in_backward = output.requires_grad();
  if (in_backward) {
    std::weak_ptr<State> state = state_;
    output.register_hook([state, unit](const at::Tensor&) {
      const auto alive = state.lock();
      if (!alive) return;
      alive->before_backward(unit);
    });
  }
  state_->gathering.after_forward(unit, in_backward);
  return output;
}

at::Tensor Fsdp::run(const std::function<at::Tensor()>& forward) {
  if (!state_->storages) state_->storages.emplace(state_->units);
  state_->current.reset();
  state_->used.clear();
  const WatchedUses watch(*state_->storages, [this](const std::string& called, const std::vector<UnitUse>& uses) {
    for (const size_t unit : state_->units_of(called, uses)) state_->use_in_forward(unit);
  });
  const at::Tensor output = forward();
  state_->leave_forward();
  if (output.requires_grad()) {
    for (const size_t unit : state_->used) state_->gathering.expect_backward(unit);
  } else if (at::GradMode::is_enabled()) {
    for (const size_t unit : state_->used) {
      if (state_->units[unit].num_trainable() > 0) throw without_gradient(state_->units[unit]);
    }
  }
  return output;
}

void Fsdp::begin_step() {
  FlightRecorder::own().set_work("");
  for (const Unit& unit : state_->units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      for (const Segment& segment : buffer.segments()) {
        const bool trainable = buffer.trainable();
        if (segment.parameter->tensor.requires_grad() != trainable)
          throw trained_otherwise(*segment.parameter, trainable);
      }
    }
  }
  state_->reduction.begin_step();
}

void Fsdp::begin_backward(bool last) {
  state_->last = last;
  state_->reduction.begin_backward(last);
  if (state_->storages) {
    state_->current.reset();
    state_->backward_uses.emplace(*state_->storages,
                                  [this](const std::string& called, const std::vector<UnitUse>& uses) {
                                    for (const UnitUse& use : uses) {
                                      if (use.is_gradient) state_->reduction.expect_open(use.unit);
                                    }
                                    for (const size_t unit : state_->units_of(called, uses))
                                      state_->use_in_backward(unit);
                                  });
  }
}

void Fsdp::begin_deferred() {
  state_->last = true;
  state_->reduction.begin_deferred();
}

void Fsdp::leave_backward() {
  state_->backward_uses.reset();
  state_->current.reset();
}

void Fsdp::end_backward() {
  leave_backward();
  state_->gathering.end_backward(state_->last);
  state_->reduction.end_backward();
}

void Fsdp::end_forward() {
  state_->gathering.end_backward(/*last=*/true);
  state_->gathering.forget_gathered();
}

void Fsdp::shards_changed(const ShardChange& change) {
  state_->gathering.shards_changed(change);
}

void Fsdp::write_values(const std::function<void(const Parameter&)>& write) {
  const at::NoGradGuard no_grad;
  finish_copies();
  for (Unit& unit : state_->units) {
    for (FlatBuffer& buffer : unit.buffers()) {
      at::Tensor shard = buffer.shard_values();
      const bool in_place = shard.numel() == buffer.numel();
      const at::Tensor full = in_place ? shard.zero_() : at::zeros({buffer.numel()}, shard.options());
      for (const Segment& segment : buffer.segments()) write(parameter_in(full, segment));
      if (!in_place) shard.copy_(full.narrow(0, buffer.shard().offset, buffer.shard().numel));
      set_aside(shard);
    }
  }
  state_->gathering.shards_changed({.frozen = true});
}

void Fsdp::visit_values(const std::function<void(const Unit&)>& visit) {
  for (size_t unit = 0; unit < state_->units.size(); ++unit) {
    const bool gathered = state_->gathering.need(unit);
    visit(state_->units[unit]);
    if (gathered) state_->gathering.let_go(unit);
  }
  if (state_->memory.parameters.placement() == Placement::Common) state_->group.barrier();
}

void Fsdp::visit_full(const at::Tensor& (FlatBuffer::*shard)() const,
                      const std::function<void(const Parameter&)>& visit) {
  finish_copies();
  for (const Unit& unit : state_->units) {
    std::map<const Parameter*, Parameter> gathered;
    for (const FlatBuffer& buffer : unit.buffers()) {
      const at::Tensor& own = (buffer.*shard)();
      if (!own.defined()) continue;
      at::Tensor full = at::empty({buffer.numel()}, own.options());
      state_->group.all_gather(full, own).wait();
      set_aside(own);
      for (const Segment& segment : buffer.segments()) gathered[segment.parameter] = parameter_in(full, segment);
    }
    for (const Parameter* parameter : unit.parameters()) {
      if (gathered.contains(parameter)) visit(gathered.at(parameter));
    }
  }
}

void Fsdp::visit_shards(const std::function<void(const Parameter&)>& visit) {
  visit_full(&FlatBuffer::shard_values, visit);
}

void Fsdp::visit_gradients(const std::function<void(const Parameter&)>& visit) {
  visit_full(&FlatBuffer::shard_gradients, visit);
}

}  // namespace meshtrain
