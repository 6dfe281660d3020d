#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fsdp/flat_buffer.h"

namespace meshtrain {

/// Elements of a range that follow one another in their global tensor too.
struct ElementRun {
  int64_t offset;  ///< in the range
  int64_t numel;
  uint64_t key;   ///< of the parameter
  int64_t index;  ///< of the first, in the global tensor
};

/// rounded[i] becomes one of the two bf16 numbers around exact[i], the nearer one the likelier, so that exact[i] is the
/// mean; a number that bf16 has stays what it is. What is drawn depends on the run's key, the element's index in the
/// global tensor, `step` and `stream` alone, so every mesh rounds alike.
///
/// rounded [n] bf16, exact [n] fp32, both contiguous, on the CPU: elements [first, first + n) of the range that `runs`
/// are of. Elements in no run, padding, are left as they are.
void round_stochastically(const at::Tensor& rounded, const at::Tensor& exact, const std::vector<ElementRun>& runs,
                          int64_t first, uint32_t step, uint32_t stream);

/// An optimizer's update of bf16 weights and state, computed in fp32 and rounded stochastically: an update far smaller
/// than the distance of neighbouring numbers is not lost, but made as a whole in one of many steps.
class StochasticRounding {
 public:
  explicit StochasticRounding(uint64_t seed) : seed_(seed) {}

  /// Where `range` of the shard that this rank keeps of `buffer` lies in the global tensors.
  std::vector<ElementRun> runs(const FlatBuffer& buffer, Range range) const;

  /// In fp32: what `tensors` and gradients become, piece by piece. Changes `tensors` element by element, in place; the
  /// pieces are whole vectors of the processor, so that no element is treated otherwise than its neighbours.
  using Update = std::function<void(const std::vector<at::Tensor>& tensors, const at::Tensor& gradients)>;

  /// `tensors`: weights, then state; [n] bf16 as `gradients`, a range with `runs`, in the optimizer's `step`, from 1
  /// on. Nothing on the Meta device.
  void apply(const std::vector<at::Tensor>& tensors, const at::Tensor& gradients, const std::vector<ElementRun>& runs,
             int64_t step, const Update& update) const;

 private:
  uint64_t seed_;
};

/// The update of `tensors` itself, or where `rounding` is given the update as it makes it.
void apply_update(const std::optional<StochasticRounding>& rounding, const std::vector<at::Tensor>& tensors,
                  const at::Tensor& gradients, const std::vector<ElementRun>& runs, int64_t step,
                  const StochasticRounding::Update& update);

}  // namespace meshtrain
