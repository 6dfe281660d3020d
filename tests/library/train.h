#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mesh/agree.h"
#include "mesh/connect.h"
#include "mesh/device_mesh.h"
#include "runtime/training/optimizer/box_optimizer.h"
#include "runtime/training/trainer/module_part.h"
#include "runtime/training/trainer/saving.h"

/// Polyak's heavy ball: an optimizer of our own, which keeps one number for each element.
class HeavyBall final : public meshtrain::BoxOptimizer {
 public:
  HeavyBall(const meshtrain::OptimizerOptions& options, const std::vector<meshtrain::ParameterGroup>& groups)
      : BoxOptimizer(options, groups, {"velocity"}), momentum_(options.momentum) {}

 protected:
  void update_box(const meshtrain::ParameterBox& box, double learning_rate) override {
    const double rate = learning_rate * box.rule.rate;  // the parameter's own, with optimizer.groups
    at::Tensor values = box.values, velocity = box.state[0];
    values.mul_(1 - rate * box.rule.weight_decay);
    velocity.mul_(momentum_).sub_(box.gradients, rate);
    values.add_(velocity);
  }

 private:
  double momentum_;
};

/// Trains `net`, any torch::nn::Module, up to step `last_step` from the newest checkpoint in `folder`, and saves it
/// there. `units`: the submodules that are gathered one at a time. `read`: returns this rank's samples of a step.
template <class Net>
void train(Net& net, const std::vector<std::string>& units, const meshtrain::DeviceMesh& mesh,
           meshtrain::ShardingMode mode, const std::filesystem::path& folder, int64_t last_step,
           const std::function<meshtrain::StepBatch(int64_t step)>& read,
           const std::function<void(meshtrain::Trainer& trainer, int64_t step, double loss)>& report) {
  const auto forward = [&](const meshtrain::MicroBatch& batch) { return net.forward(batch.inputs, batch.labels); };
  const meshtrain::ModelParts parts = {
      std::make_shared<meshtrain::ModulePart>(net, units, forward, mesh, meshtrain::FsdpOptions{.mode = mode})};
  meshtrain::TrainerOptions options;
  options.optimizer.name = "heavy_ball";
  options.optimizer.momentum = 0.9;
  meshtrain::Trainer trainer(parts, meshtrain::index_of(parts), mesh, options);

  meshtrain::TrainingState state = meshtrain::resume(trainer, folder).value_or(meshtrain::TrainingState());
  const int64_t first_step = state.step;
  while (state.step < last_step) {
    const meshtrain::StepBatch batch = read(state.step);
    const auto result = trainer.step(batch, trainer.count_tokens(batch), {.learning_rate = 0.05}).read();
    if (result.non_finite) {  // on every rank alike; the step has changed nothing
      throw meshtrain::AgreedError("step " + std::to_string(state.step + 1) + " has the loss " +
                                   std::to_string(result.loss) +
                                   "; the first parameter whose gradient is not finite: " + trainer.find_non_finite());
    }
    report(trainer, ++state.step, result.loss);
  }
  if (state.step > first_step) meshtrain::save(trainer, state, folder);
}
