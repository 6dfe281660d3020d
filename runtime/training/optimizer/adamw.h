#pragma once

#include "runtime/training/optimizer/optimizer.h"
#include "runtime/training/optimizer/rules.h"

namespace meshtrain {

/// AdamW. Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. Moments have the dtype of the shards,
/// or fp32. Parameters that are updated as full matrices are left to Muon.
class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
        const std::optional<StochasticRounding>& rounding);
  bool rounds() const override { return true; }
  std::vector<ShardTensor> state() const override;
  std::vector<StatePager*> pagers() const override;

 protected:
  void update(const UpdateInputs& inputs) override;

 private:
  struct Part {  // one range of one buffer
    at::Tensor values, gradients, first_moment, second_moment;
    std::optional<at::Tensor> rounded;  // of the buffer's rounded_shard(), if it has one
    UpdateRule rule;
    const FlatBuffer* buffer;
    Range range;      // of its shard
    at::Tensor runs;  // to round stochastically

    std::array<at::Tensor, 4> tensors() const { return {values, gradients, first_moment, second_moment}; }
    StatePager::State state() const { return {first_moment, second_moment}; }
  };

  OptimizerOptions options_;
  std::optional<StochasticRounding> rounding_;
  std::vector<Part> parts_;
  std::unique_ptr<StatePager> pager_;
};

}  // namespace meshtrain
