#pragma once

#include "runtime/optimizer/optimizer.h"

namespace meshtrain {

/// Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. Moments have the dtype of the parameters.
class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerRecipe& recipe, const std::vector<Unit>& units, std::optional<StochasticRounding> rounding);
  void step(double learning_rate) override;

 private:
  struct Part {  // one range of one buffer
    at::Tensor values, gradients, first_moment, second_moment;
    double weight_decay;
    std::vector<ElementRun> runs;  // to round stochastically
  };

  OptimizerRecipe recipe_;
  std::optional<StochasticRounding> rounding_;
  std::vector<Part> parts_;
  at::Tensor num_steps_;  // scalar
};

}  // namespace meshtrain
