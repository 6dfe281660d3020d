#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mesh/cuda/device_graph.h"
#include "runtime/trainer/batch.h"
#include "runtime/trainer/step_values.h"

namespace meshtrain {

/// A step as one graph of the device. The first steps run as they are, so that libraries and allocator have what they
/// need; the next is recorded, and it and those after it are replayed: the host then does nothing but to copy tokens
/// and inputs to where the recorded step reads them.
class StepGraph {
 public:
  /// All of a step that the device computes, and nothing that depends on a number which is not among its arguments; its
  /// result: values as of StepOutcome.
  using Step = std::function<at::Tensor(const StepBatch& batch, const StepInputs& inputs)>;

  StepGraph(std::unique_ptr<DeviceGraph> graph, Step step);

  /// What stands against it in a run, "optimizer is sgd, ..."; empty: nothing.
  /// `can_record`: the device and what its ranks communicate through can be.
  static std::string hindrance(const Recipe& recipe, at::Device device, bool can_record);

  /// Whether all batches like this one are the same work: its samples have no documents of their own.
  static bool takes(const StepBatch& batch);

  /// The step's values. `batch` on the host; of the same shapes each time.
  at::Tensor run(const StepBatch& batch, const StepInputs& inputs);

 private:
  std::unique_ptr<DeviceGraph> graph_;
  Step step_;
  int num_runs_ = 0;
  // What the recorded step reads and writes.
  StepBatch batch_;
  std::optional<StepInputs> inputs_;
  at::Tensor values_;
};

}  // namespace meshtrain
