#include "runtime/training/trainer/run_schedule.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/flight_recorder.h"
#include "tensor_parallel/products/deferred.h"

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

bool computes(Kind kind) {
  return kind == Kind::Forward || kind == Kind::Backward || kind == Kind::InputGradient || kind == Kind::WeightGradient;
}

// The most messages under way on a link: each keeps its tensor. check_schedule() has shown that the
// schedule ends even if each message is awaited at once.
constexpr size_t kMostUnderWay = 2;

// Purposes of messages.
constexpr const char *kActivations = "pp.activations", *kGradients = "pp.input_gradients";

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
  at::Tensor input;
  at::Tensor output;  // undefined once it has been sent
  torch::autograd::Edge edge = {};
  at::DimVector sizes = {};  // of the output
  at::TensorOptions options = {};

  bool requires_grad() const { return edge.is_valid(); }
  at::Tensor empty_output() const { return at::empty(sizes, options); }
};

/// Runs the backward of `pass`. Computes no gradients for an output that depends on no trained parameter.
void run_backward(const ModelPart& part, const Pass& pass, const at::Tensor& gradient, bool reduces) {
  const auto leave = c10::make_scope_exit([&] {
    for (const ParameterGroup& group : part.groups()) group.fsdp->leave_backward();
  });
  for (const ParameterGroup& group : part.groups()) group.fsdp->begin_backward(/*last=*/reduces);
  if (pass.requires_grad()) {
    torch::autograd::Engine::get_default_engine().execute({pass.edge}, {gradient}, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  for (const ParameterGroup& group : part.groups()) group.fsdp->end_backward();
}

/// Returns the action without its micro-batch, as part of a step: "forward of stage 1".
std::string work_of(const PipelineAction& action) {
  const auto what = [kind = action.kind] {
    switch (kind) {
      case Kind::Forward:
        return "forward";
      case Kind::Backward:
      case Kind::InputGradient:
        return "backward";
      case Kind::WeightGradient:
        return "weight gradients";
      case Kind::SendActivation:
        return "output";
      case Kind::ReceiveActivation:
        return "input";
      case Kind::SendGradient:
        return "input gradient";
      case Kind::ReceiveGradient:
        break;
    }
    return "output gradient";
  };
  return std::string(what()) + " of stage " + std::to_string(action.stage);
}

/// A rank's step.
class Run {
 public:
  Run(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch, const at::Tensor& start,
      const Pipeline& pipeline)
      : schedule_(schedule),
        parts_(parts),
        batch_(batch),
        start_(start),
        links_(pipeline.links),
        first_trained_(pipeline.first_trained),
        on_action_(pipeline.on_action),
        loss_sum_(at::zeros({}, start.options().dtype(at::kDouble))) {}

  at::Tensor take_all() {
    for (const PipelineAction& action : schedule_.rows.at(static_cast<size_t>(rank()))) {
      if (links_ != nullptr) FlightRecorder::own().begin_action(action.micro_batch, work_of(action));
      if (on_action_ && computes(action.kind)) on_action_(action);
      take(action);
      if (links_ != nullptr) FlightRecorder::own().end_action();
    }
    show("last messages");
    if (on_action_) on_action_(std::nullopt);
    for (const auto& [rank, sent] : sent_) {
      for (const Work& work : sent) work.wait();
    }
    return loss_sum_;
  }

 private:
  using Key = std::pair<int, int>;  // stage and micro-batch

  int rank() const { return links_ == nullptr ? 0 : links_->rank(); }
  ModelPart& part_of(int stage) const { return *parts_[static_cast<size_t>(stage / schedule_.ranks)]; }
  bool is_here(int stage) const { return schedule_.rank_of(stage) == rank(); }

  /// Names a part of the action, or of the step; on one rank the units of parameters say enough. Empty: the action.
  void show(const std::string& work) const {
    if (links_ != nullptr) FlightRecorder::own().set_work(work);
  }

  at::Tensor await(const Arrival& arrival, const std::string& what, int stage) const {
    show("wait for " + what + " of stage " + std::to_string(stage));
    at::Tensor tensor = arrival.await();
    show("");
    return tensor;
  }

  Link from_stage(int stage, const char* purpose) const {
    return links_->from(schedule_.rank_of(stage)).with_purpose(purpose);
  }

  void take(const PipelineAction& action) {
    const auto [kind, stage, i] = action;
    switch (kind) {
      case Kind::Forward:
        return forward(stage, i);
      case Kind::Backward:
        return backward(stage, i, /*reduces=*/i + 1 == schedule_.micro_batches);
      case Kind::InputGradient: {
        const DeferringBackward defers(deferred_[{stage, i}]);
        return backward(stage, i, /*reduces=*/false);
      }
      case Kind::WeightGradient:
        return weight_gradients(stage, i);
      case Kind::SendActivation:
        return send_output(stage, passes_.at({stage, i}));
      case Kind::ReceiveActivation:
        inputs_[{stage, i}] = receive(from_stage(stage - 1, kActivations),
                                      part_of(stage).make_input(batch_.micro_batches[static_cast<size_t>(i)]));
        return;
      case Kind::SendGradient:
        if (stage <= first_trained_) return;
        return send(stage - 1, kGradients, input_gradients_.extract({stage, i}).mapped());
      case Kind::ReceiveGradient:
        if (stage < first_trained_) return;
        gradients_[{stage, i}] = receive(from_stage(stage + 1, kGradients), passes_.at({stage, i}).empty_output());
        return;
    }
  }

  void send(int to_stage, const char* purpose, const at::Tensor& tensor) {
    const int rank = schedule_.rank_of(to_stage);
    std::deque<Work>& sent = sent_[rank];
    if (sent.size() >= kMostUnderWay) {
      show("wait for earlier messages");
      for (; sent.size() >= kMostUnderWay; sent.pop_front()) sent.front().wait();
      show("");
    }
    sent.push_back(links_->to(rank).with_purpose(purpose).send(tensor));
  }

  static Arrival receive(const Link& link, at::Tensor tensor) {
    const Work work = link.receive(tensor);
    return {tensor, work};
  }

  // The sum that ends a stage saves nothing for its backward, so the output is not kept.
  void send_output(int stage, Pass& pass) {
    send(stage + 1, kActivations, pass.output.detach());
    pass.output.reset();
  }

  void forward(int stage, int i) {
    at::Tensor input;
    if (stage > 0 && is_here(stage - 1)) {
      const at::Tensor& before = passes_.at({stage - 1, i}).output;
      input = before.detach().set_requires_grad(before.requires_grad());
    } else if (stage > 0) {
      input = await(inputs_.extract({stage, i}).mapped(), "input", stage).set_requires_grad(stage > first_trained_);
    }
    Pass pass{input, part_of(stage).forward(input, batch_.micro_batches[static_cast<size_t>(i)])};
    if (pass.output.requires_grad()) pass.edge = torch::autograd::impl::gradient_edge(pass.output);
    pass.sizes = pass.output.sizes();
    pass.options = pass.output.options();
    passes_[{stage, i}] = std::move(pass);
  }

  void backward(int stage, int i, bool reduces) {
    const Pass pass = std::move(passes_.extract({stage, i}).mapped());
    const bool is_loss = stage + 1 == schedule_.stages;
    at::Tensor gradient;
    if (is_loss) {
      gradient = start_.to(pass.output.scalar_type());
    } else if (stage >= first_trained_) {
      gradient = await(gradients_.extract({stage, i}).mapped(), "output gradient", stage);
    }
    run_backward(part_of(stage), pass, gradient, reduces);
    if (is_loss) loss_sum_.add_(pass.output.detach());
    if (stage <= first_trained_) return;
    if (is_here(stage - 1)) {
      gradients_[{stage - 1, i}] = {pass.input.grad()};
    } else {
      input_gradients_[{stage, i}] = pass.input.grad();
    }
  }

  void weight_gradients(int stage, int i) {
    DeferredGradients gradients = std::move(deferred_.extract({stage, i}).mapped());
    if (i + 1 < schedule_.micro_batches) return gradients.compute();
    const std::vector<ParameterGroup>& groups = part_of(stage).groups();
    for (const ParameterGroup& group : groups) group.fsdp->begin_deferred();
    gradients.compute();
    for (const ParameterGroup& group : groups) group.fsdp->end_backward();
  }

  const PipelineSchedule& schedule_;
  const ModelParts& parts_;
  const StepBatch& batch_;
  const at::Tensor& start_;
  const PipelineLinks* links_;
  int first_trained_;
  const OnAction& on_action_;
  std::map<Key, Arrival> inputs_;  // from other ranks
  std::map<Key, Pass> passes_;
  std::map<Key, Arrival> gradients_;           // of outputs
  std::map<Key, at::Tensor> input_gradients_;  // for other ranks
  std::map<Key, DeferredGradients> deferred_;  // of weights
  std::map<int, std::deque<Work>> sent_;       // by the rank that receives
  at::Tensor loss_sum_;
};

}  // namespace

at::Tensor run_schedule(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start, const Pipeline& pipeline) {
  return Run(schedule, parts, batch, start, pipeline).take_all();
}

at::Tensor run_forward(const ModelParts& parts, const MicroBatch& micro_batch, const PipelineLinks* links) {
  const int ranks = links == nullptr ? 1 : links->size(), rank = links == nullptr ? 0 : links->rank();
  const int last = ranks * static_cast<int>(parts.size()) - 1;
  at::Tensor output;
  for (int stage = rank; stage <= last; stage += ranks) {
    ModelPart& part = *parts[static_cast<size_t>(stage / ranks)];
    if (links != nullptr && stage > 0) {
      output = part.make_input(micro_batch);
      links->from((rank + ranks - 1) % ranks).with_purpose(kActivations).receive(output).wait();
    }
    output = part.forward(output, micro_batch);
    if (links != nullptr && stage < last) links->to((rank + 1) % ranks).with_purpose(kActivations).send(output).wait();
  }
  return rank + 1 == ranks ? output : at::zeros({}, output.options().dtype(at::kDouble));
}

}  // namespace meshtrain
