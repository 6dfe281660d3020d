#pragma once

#include <string>
#include <vector>

#include "runtime/training/optimizer/optimizer.h"
#include "runtime/training/optimizer/rules.h"

namespace meshtrain {

/// A box of a parameter that one rank updates.
struct ParameterBox {
  std::string name;                   ///< of the parameter
  std::vector<int64_t> global_shape;  ///< of the complete parameter
  Box box;                            ///< in the complete parameter
  UpdateRule rule;                    ///< of optimizer.groups and weight decay
  at::Tensor values;                  ///< [box.size], to be changed in place
  at::Tensor gradients;               ///< [box.size], reduced and clipped
  std::vector<at::Tensor> state;      ///< [box.size] each, of BoxOptimizer's names; zeros before the first step
};

/// An optimizer that updates each element by itself, box by box: the base of optimizers for which memory, checkpoints
/// and division over ranks are done here. Boxes differ from mesh to mesh, so an update must depend on nothing but the
/// element's value, gradient and state, the rule, and num_steps().
class BoxOptimizer : public Optimizer {
 public:
  /// `state_names`: of the numbers that each element keeps between steps, as checkpoints have them.
  BoxOptimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
               const std::vector<std::string>& state_names);
  std::vector<ShardTensor> state() const final;

 protected:
  /// Updates one box. `learning_rate`: that of the step; the rule's rate multiplies it.
  virtual void update_box(const ParameterBox& box, double learning_rate) = 0;

 private:
  struct Part {  // one range of one buffer, whose elements share a rule
    at::Tensor values, gradients;
    std::vector<ShardTensor> state;
    std::vector<ParameterBox> boxes;

    std::vector<at::Tensor> tensors() const;
  };

  void update(const UpdateInputs& inputs) final;

  std::vector<Part> parts_;
};

}  // namespace meshtrain
