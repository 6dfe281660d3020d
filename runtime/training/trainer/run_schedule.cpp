#include "runtime/training/trainer/run_schedule.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <stdexcept>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

/// A message on its way into a tensor, or complete.
struct Arrival {
  at::Tensor tensor;
  Work work = {};

  at::Tensor await() const {
    work.wait();
    return tensor;
  }
};

/// A stage's forward for a micro-batch, kept until its backward.
struct Pass {
  at::Tensor input, output;
};

/// Runs the backward of `pass`. Computes no gradients for an output that depends on no trained parameter.
void run_backward(const ModelPart& part, const Pass& pass, const at::Tensor& gradient, bool reduces) {
  const auto leave = c10::make_scope_exit([&] {
    for (const ParameterGroup& group : part.groups()) group.fsdp->leave_backward();
  });
  for (const ParameterGroup& group : part.groups()) group.fsdp->begin_backward(/*last=*/reduces);
  if (pass.output.requires_grad()) torch::autograd::backward({pass.output}, {gradient});
  for (const ParameterGroup& group : part.groups()) group.fsdp->end_backward();
}

/// A rank's step.
class Run {
 public:
  Run(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch, const at::Tensor& start,
      const PipelineLinks* links)
      : schedule_(schedule),
        parts_(parts),
        batch_(batch),
        start_(start),
        links_(links),
        loss_sum_(at::zeros({}, start.options().dtype(at::kDouble))) {}

  at::Tensor take_all() {
    for (const PipelineAction& action : schedule_.rows.at(static_cast<size_t>(rank()))) take(action);
    for (const Work& work : sent_) work.wait();
    return loss_sum_;
  }

 private:
  using Key = std::pair<int, int>;  // stage and micro-batch

  int rank() const { return links_ == nullptr ? 0 : links_->rank(); }
  ModelPart& part_of(int stage) const { return *parts_[static_cast<size_t>(stage / schedule_.ranks)]; }
  bool is_here(int stage) const { return schedule_.rank_of(stage) == rank(); }

  void take(const PipelineAction& action) {
    const auto [kind, stage, i] = action;
    switch (kind) {
      case Kind::Forward:
        return forward(stage, i);
      case Kind::Backward:
        return backward(stage, i);
      case Kind::SendActivation:
        sent_.push_back(links_->to(schedule_.rank_of(stage + 1)).send(passes_.at({stage, i}).output.detach()));
        return;
      case Kind::ReceiveActivation:
        inputs_[{stage, i}] =
            receive(part_of(stage).make_input(batch_.micro_batches[static_cast<size_t>(i)]), stage - 1);
        return;
      case Kind::SendGradient:
        sent_.push_back(links_->to(schedule_.rank_of(stage - 1)).send(input_gradients_.extract({stage, i}).mapped()));
        return;
      case Kind::ReceiveGradient:
        gradients_[{stage, i}] = receive(at::empty_like(passes_.at({stage, i}).output), stage + 1);
        return;
      case Kind::InputGradient:
      case Kind::WeightGradient:
        break;
    }
    throw std::logic_error("a schedule with the " + describe(action) + " cannot run yet");
  }

  Arrival receive(at::Tensor tensor, int from_stage) const {
    const Work work = links_->from(schedule_.rank_of(from_stage)).receive(tensor);
    return {tensor, work};
  }

  void forward(int stage, int i) {
    at::Tensor input;
    if (stage > 0 && is_here(stage - 1)) {
      const at::Tensor& before = passes_.at({stage - 1, i}).output;
      input = before.detach().set_requires_grad(before.requires_grad());
    } else if (stage > 0) {
      input = inputs_.extract({stage, i}).mapped().await().set_requires_grad(true);
    }
    passes_[{stage, i}] = {input, part_of(stage).forward(input, batch_.micro_batches[static_cast<size_t>(i)])};
  }

  void backward(int stage, int i) {
    const Pass pass = std::move(passes_.extract({stage, i}).mapped());
    const bool is_loss = stage + 1 == schedule_.stages;
    const at::Tensor gradient =
        is_loss ? start_.to(pass.output.scalar_type()) : gradients_.extract({stage, i}).mapped().await();
    run_backward(part_of(stage), pass, gradient, /*reduces=*/i + 1 == schedule_.micro_batches);
    if (is_loss) loss_sum_.add_(pass.output.detach());
    if (stage == 0) return;
    if (is_here(stage - 1)) {
      gradients_[{stage - 1, i}] = {pass.input.grad()};
    } else {
      input_gradients_[{stage, i}] = pass.input.grad();
    }
  }

  const PipelineSchedule& schedule_;
  const ModelParts& parts_;
  const StepBatch& batch_;
  const at::Tensor& start_;
  const PipelineLinks* links_;
  std::map<Key, Arrival> inputs_;  // from other ranks
  std::map<Key, Pass> passes_;
  std::map<Key, Arrival> gradients_;           // of outputs
  std::map<Key, at::Tensor> input_gradients_;  // for other ranks
  std::vector<Work> sent_;
  at::Tensor loss_sum_;
};

}  // namespace

at::Tensor run_schedule(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start, const PipelineLinks* links) {
  return Run(schedule, parts, batch, start, links).take_all();
}

}  // namespace meshtrain
