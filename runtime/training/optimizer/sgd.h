#pragma once

#include "runtime/training/optimizer/optimizer.h"
#include "runtime/training/optimizer/rules.h"

namespace meshtrain {

/// Stochastic gradient descent, with momentum on request; weight decay is added to the gradient.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
      const std::optional<StochasticRounding>& rounding);
  std::vector<ShardTensor> state() const override;
  std::vector<StatePager*> pagers() const override;

 protected:
  void update(const UpdateInputs& inputs) override;

 private:
  struct Part {
    at::Tensor values, gradients, velocity;  // velocity: undefined without momentum
    UpdateRule rule;
    const FlatBuffer* buffer;
    Range range;      // of its shard
    at::Tensor runs;  // to round stochastically

    std::vector<at::Tensor> tensors() const {
      return velocity.defined() ? std::vector{values, gradients, velocity} : std::vector{values, gradients};
    }
    StatePager::State state() const { return velocity.defined() ? StatePager::State{velocity} : StatePager::State(); }
  };

  double momentum_;
  std::optional<StochasticRounding> rounding_;
  std::vector<Part> parts_;
  std::unique_ptr<StatePager> pager_;
};

}  // namespace meshtrain
