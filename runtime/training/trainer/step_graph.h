#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mesh/device/cuda/device_graph.h"
#include "runtime/training/trainer/micro_batch.h"
#include "runtime/training/trainer/options.h"
#include "runtime/training/trainer/step_values.h"

namespace meshtrain {

/// A step as one graph of the device. The first steps run without it, so that libraries and allocator can prepare; the
/// next step is recorded, and that step and all later ones replay the graph. The host then only copies tokens and
/// inputs to the memory that the recorded step reads.
class StepGraph {
 public:
  /// Everything in a step that the device computes. It must not depend on a number outside its arguments: a replay
  /// would use the recorded number. Returns values as StepOutcome has them.
  using Step = std::function<at::Tensor(const StepBatch& batch, const StepInputs& inputs)>;

  StepGraph(std::unique_ptr<DeviceGraph> graph, Step step);

  /// Returns why a run cannot use a graph, "optimizer is sgd, ..."; empty when it can. `can_record`: the device and the
  /// transport of its ranks support recording. `is_offloaded`: as Fsdp::is_offloaded().
  static std::string hindrance(const TrainerOptions& options, at::Device device, bool can_record, bool is_offloaded);

  /// Returns true when the recorded work is the same for every batch like this one: its samples have no documents of
  /// their own.
  static bool takes(const StepBatch& batch);

  /// Returns the step's values. `batch` is on the host and has the same shapes in every call.
  at::Tensor run(const StepBatch& batch, const StepInputs& inputs);

 private:
  std::unique_ptr<DeviceGraph> graph_;
  Step step_;
  int num_runs_ = 0;
  // Memory that the recorded step reads and writes.
  StepBatch batch_;
  std::optional<StepInputs> inputs_;
  at::Tensor values_;
};

}  // namespace meshtrain
