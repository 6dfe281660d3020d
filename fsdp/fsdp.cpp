#include "fsdp/fsdp.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace meshtrain {
namespace {

class WhenGradientIsFinal final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit WhenGradientIsFinal(std::function<void()> action) : action_(std::move(action)) {}
  void operator()(const at::Tensor&) override { action_(); }

 private:
  std::function<void()> action_;
};

}  // namespace

struct Fsdp::State {
  std::vector<Unit> units;
  Group group;
  OnReduced on_reduced;
  bool synchronize = false;
  int64_t next = -1;  // the unit whose reduction is issued next; units behind it are issued
  std::vector<std::pair<FlatBuffer*, Work>> in_flight;  // of the unit issued last

  // A unit is reduced when it and all units behind it are complete.
  void on_final(Unit& unit) {
    if (!unit.count_final() || !synchronize) return;
    while (next >= 0 && units[next].complete()) issue_next();
  }

  void issue_next() {
    Unit& unit = units[next--];
    std::vector<std::pair<FlatBuffer*, Work>> issued;
    for (FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      at::Tensor gradients = buffer.gradients();
      issued.emplace_back(&buffer, group.all_reduce(gradients));
    }
    hand_over();
    in_flight = std::move(issued);
    if (group.size() == 1) hand_over();  // nothing to wait for
  }

  // Waits for the unit issued last: its reduction had the backward of a whole unit to finish.
  void hand_over() {
    for (auto& [buffer, work] : in_flight) {
      work.wait();
      if (on_reduced) on_reduced(*buffer);
    }
    in_flight.clear();
  }
};

Fsdp::Fsdp(std::vector<UnitSpec> units, Group group, OnReduced on_reduced) : state_(std::make_shared<State>()) {
  state_->group = group.with_purpose("dp.gradients");
  state_->on_reduced = std::move(on_reduced);
  state_->units.reserve(units.size());  // hooks keep references
  for (UnitSpec& spec : units) {
    Unit& unit = state_->units.emplace_back(std::move(spec), group.size());
    for (FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      for (const Segment& segment : buffer.segments()) {
        std::weak_ptr<State> state = state_;
        torch::autograd::impl::set_post_acc_grad_hooks(segment.parameter->tensor,
                                                       std::make_unique<WhenGradientIsFinal>([state, &unit] {
                                                         if (auto alive = state.lock()) alive->on_final(unit);
                                                       }));
      }
    }
  }
}

Fsdp::~Fsdp() = default;

const std::vector<Unit>& Fsdp::units() const {
  return state_->units;
}

void Fsdp::zero_gradients() {
  for (Unit& unit : state_->units) {
    for (FlatBuffer& buffer : unit.buffers()) {
      if (buffer.trainable()) buffer.gradients().zero_();
    }
  }
}

void Fsdp::begin_backward(bool synchronize) {
  state_->synchronize = synchronize;
  state_->next = static_cast<int64_t>(state_->units.size()) - 1;
  for (Unit& unit : state_->units) unit.begin_backward();
}

void Fsdp::end_backward() {
  if (!state_->synchronize) return;
  while (state_->next >= 0) state_->issue_next();
  state_->hand_over();
  state_->synchronize = false;
}

}  // namespace meshtrain
