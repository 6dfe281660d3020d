#include "runtime/training/trainer/module_part.h"

#include <optional>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

ReplicaMap replicas_along_dp(const DeviceMesh& mesh, ShardingMode mode) {
  const bool is_cut = mode != ShardingMode::NoShard;
  return ReplicaMap(mesh, {kDataAxis}, is_cut ? std::optional(mesh.size(kDataAxis)) : std::nullopt);
}

/// Copies the parameters of the first rank of `world` to all ranks. Returns the units.
const std::vector<UnitSpec>& with_equal_values(const ModuleUnits& units, const Group& world) {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : units.parameters()) {
    at::Tensor values = parameter.tensor.contiguous();
    world.with_purpose("first values").broadcast(values, 0).wait();
    if (!values.is_same(parameter.tensor)) at::Tensor(parameter.tensor).copy_(values);
  }
  return units.specs();
}

}  // namespace

ModulePart::ModulePart(torch::nn::Module& module, const std::vector<std::string>& units, Forward forward,
                       const DeviceMesh& mesh, const FsdpOptions& options)
    : ModulePart(module, units, std::move(forward), replicas_along_dp(mesh, options.mode), options) {}

ModulePart::ModulePart(torch::nn::Module& module, const std::vector<std::string>& units, Forward forward,
                       ReplicaMap replicas, const FsdpOptions& options)
    : units_(module, units),
      fsdp_(with_equal_values(units_, replicas.world()), over(replicas, options)),
      forward_(std::move(forward)),
      groups_({{&fsdp_, std::move(replicas)}}) {}

at::Tensor ModulePart::forward(const at::Tensor& /*input*/, const MicroBatch& micro_batch) {
  return fsdp_.run([&] { return forward_(micro_batch); });
}

void ModulePart::release() {
  fsdp_.visit_values([](const Unit& unit) {
    for (const Parameter* parameter : unit.parameters()) {
      const at::Tensor& tensor = parameter->tensor;
      tensor.mutable_grad().reset();
      tensor.set_data(tensor.detach().clone());
    }
  });
}

}  // namespace meshtrain
