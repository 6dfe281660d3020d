#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fsdp/flat_buffer.h"
#include "runtime/training/optimizer/operators/element_run.h"

namespace meshtrain {

/// Returns `runs`, sorted by their offsets, as a tensor [runs, 4] int64 on `device`.
at::Tensor table_of(const std::vector<ElementRun>& runs, at::Device device);

/// Rounds exact[i] to one of the two bf16 numbers around it, the nearer one with the higher probability, so that the
/// mean of rounded[i] is exact[i]; a bf16 number stays as it is. The random bits depend on the run's key, the element's
/// index in the global tensor, `step` and `stream` alone, so every mesh rounds alike.
///
/// rounded [n] bf16, exact [n] fp32, both contiguous, and runs, a table_of() runs, on one device: elements
/// [first, first + n) of the range that the runs belong to. Elements in no run, padding, are not changed. CPU and CUDA
/// give the same bits.
void round_stochastically(const at::Tensor& rounded, const at::Tensor& exact, const at::Tensor& runs, int64_t first,
                          uint32_t step, uint32_t stream);

/// An optimizer's update of bf16 weights and state, computed in fp32 and rounded stochastically: an update far smaller
/// than the distance of neighbouring numbers is not lost, but made in full in one of many steps.
class StochasticRounding {
 public:
  explicit StochasticRounding(uint64_t seed) : seed_(seed) {}

  /// Returns the table_of() runs of `range`, in this rank's shard of `buffer`, in the global tensors, on its device.
  at::Tensor runs(const FlatBuffer& buffer, Range range) const;

  /// An update in fp32 of a piece of `tensors`, element by element, in place. Pieces are a multiple of the processor's
  /// vectors, so that every element is computed in the same way.
  using Update = std::function<void(const std::vector<at::Tensor>& tensors, const at::Tensor& gradients)>;

  /// Applies `update` to `tensors`: weights, then state; [n] bf16, or fp32, which is not rounded; gradients in bf16:
  /// elements [first, first + n) of a range with `runs`. `step`: that of the optimizer, from 1 on. Does nothing on the
  /// Meta device.
  void apply(const std::vector<at::Tensor>& tensors, const at::Tensor& gradients, const at::Tensor& runs, int64_t first,
             int64_t step, const Update& update) const;

 private:
  uint64_t seed_;
};

/// Applies `update` to `tensors`, through `rounding` if given. Tensors of several dtypes, weights in bf16 beside state
/// in fp32, are updated in fp32 and rounded to the nearest.
void apply_update(const std::optional<StochasticRounding>& rounding, const std::vector<at::Tensor>& tensors,
                  const at::Tensor& gradients, const at::Tensor& runs, int64_t first, int64_t step,
                  const StochasticRounding::Update& update);

}  // namespace meshtrain
