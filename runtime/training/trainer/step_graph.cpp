#include "runtime/training/trainer/step_graph.h"

#include <algorithm>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "runtime/training/optimizer/optimizer.h"

namespace meshtrain {
namespace {

constexpr int kAsTheyAre = 3;  // steps before the recorded one

}  // namespace

StepGraph::StepGraph(std::unique_ptr<DeviceGraph> graph, Step step)
    : graph_(std::move(graph)), step_(std::move(step)) {}

std::string StepGraph::hindrance(const TrainerOptions& options, at::Device device, bool can_record, bool is_offloaded) {
  if (!device.is_cuda()) return "CPUs have none";
  if (!can_record) return "ranks communicate through the host";
  if (!optimizer_traits(options.optimizer.name).on_device) {
    return "the host takes part in the updates of " + options.optimizer.name;
  }
  if (is_offloaded) return "the host takes part in updates of offloaded shards";
  if (options.rounding_seed) return "the host takes part in stochastic rounding";
  return "";
}

bool StepGraph::takes(const StepBatch& batch) {
  return std::ranges::all_of(
      batch.micro_batches, [](const MicroBatch& each) { return each.documents.empty() && !each.positions.defined(); });
}

at::Tensor StepGraph::run(const StepBatch& batch, const StepInputs& inputs) {
  const at::Device device = inputs.values.device();
  if (!inputs_) {
    inputs_.emplace(at::empty_like(inputs.values));
    for (const MicroBatch& each : batch.micro_batches) {
      batch_.micro_batches.push_back(
          {at::empty_like(each.inputs, device), at::empty_like(each.labels, device), each.documents});
    }
  }
  inputs_->values.copy_(inputs.values);
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    batch_.micro_batches[i].inputs.copy_(to_device(batch.micro_batches[i].inputs, device));
    batch_.micro_batches[i].labels.copy_(to_device(batch.micro_batches[i].labels, device));
  }
  if (++num_runs_ <= kAsTheyAre) return step_(batch_, *inputs_);
  if (!values_.defined()) graph_->record([this] { values_ = step_(batch_, *inputs_); });
  graph_->replay();
  return values_.clone();
}

}  // namespace meshtrain
