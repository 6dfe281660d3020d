#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <vector>

#include "expert_parallel/expert_arithmetic.h"
#include "mesh/box.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {

/// The weights of experts as leaves of one backward, whose gradients go into their buffers.
class ExpertLeaves {
 public:
  /// Returns gate_up, down, and the biases that exist: the inputs of autograd functions.
  static std::vector<at::Tensor> of(const ExpertWeights& experts);

  /// `needed`: for each leaf of of(), whether its gradient is needed.
  ExpertLeaves(const ExpertWeights& experts, std::vector<bool> needed);

  bool needs_down() const { return needed_[1]; }
  /// Returns true when all needed gradients may be computed after the backward.
  bool can_defer() const;
  std::vector<at::Tensor> needed() const;

  /// Finds the buffers. `results`, from its item `first` on, gets new tensors for leaves without a buffer.
  void begin(torch::autograd::variable_list& results, size_t first);
  /// Writes or adds the gradients of `experts`, a range of all experts of the leaves. `is_first`: nothing has been
  /// written for them in this backward; zeros are then written for experts without rows.
  void write(const ExpertOperands& operands, Range experts, bool is_first) const;

 private:
  enum Kind : size_t { GateUp, Down, GateUpBias, DownBias };
  struct Leaf {
    Kind kind;
    at::Tensor tensor;
    GradientTarget target = {};
  };

  static void write(Kind kind, const ExpertOperands& operands, const at::Tensor& into, bool unwritten);

  std::vector<bool> needed_;
  std::vector<Leaf> leaves_;
};

}  // namespace meshtrain
