#pragma once

#include "runtime/optimizer/optimizer.h"

namespace meshtrain {

/// Stochastic gradient descent, with momentum on request; weight decay is added to the gradient.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerRecipe& recipe, const std::vector<Unit>& units, std::optional<StochasticRounding> rounding);
  void step(double learning_rate) override;

 private:
  struct Part {
    at::Tensor values, gradients, velocity;  // velocity: undefined without momentum
    double weight_decay;
    std::vector<ElementRun> runs;  // to round stochastically
  };

  double momentum_;
  std::optional<StochasticRounding> rounding_;
  std::vector<Part> parts_;
};

}  // namespace meshtrain
