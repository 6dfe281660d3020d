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
  UpdateRule rule;                    ///< from optimizer.groups and weight decay
  at::Tensor values;                  ///< [box.size], to be changed in place
  at::Tensor gradients;               ///< [box.size], reduced and clipped
  std::vector<at::Tensor> state;      ///< [box.size] each, in the order of state_names; zeros before the first step.
                                      ///< Use it only in update_box(): paged state has other memory in each update
};

/// The base of optimizers that update each element by itself, box by box. It takes care of memory, checkpoints and
/// division over ranks. An update must depend only on the element's value, gradient and state, the rule, the learning
/// rate and num_steps(). Otherwise results depend on the mesh, because boxes differ from mesh to mesh.
class BoxOptimizer : public Optimizer {
 public:
  /// `state_names`: names, in checkpoints, of the numbers that each element keeps between steps.
  BoxOptimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
               const std::vector<std::string>& state_names);
  std::vector<ShardTensor> state() const final;
  std::vector<StatePager*> pagers() const final;

 protected:
  /// Updates one box. `learning_rate`: that of the step; multiply it by box.rule.rate.
  virtual void update_box(const ParameterBox& box, double learning_rate) = 0;

 private:
  struct Part {  // one range of one buffer, whose elements share a rule
    const FlatBuffer* buffer;
    at::Tensor values, gradients;
    std::vector<ShardTensor> shard_state;
    std::vector<ParameterBox> boxes;

    std::vector<at::Tensor> tensors() const;
    StatePager::State state() const;
    /// Returns boxes whose state is in `paged`, tensors like state().
    std::vector<ParameterBox> boxes_with(const StatePager::State& paged) const;
  };

  void update(const UpdateInputs& inputs) final;

  std::vector<Part> parts_;
  std::unique_ptr<StatePager> pager_;
};

}  // namespace meshtrain
