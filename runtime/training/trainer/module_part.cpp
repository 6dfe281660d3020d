#include "runtime/training/trainer/module_part.h"

#include <optional>
#include <utility>

namespace meshtrain {
namespace {

ReplicaMap replicas_along_dp(const DeviceMesh& mesh, ShardingMode mode) {
  const bool is_cut = mode != ShardingMode::NoShard;
  return ReplicaMap(mesh, {kDataAxis}, is_cut ? std::optional(mesh.size(kDataAxis)) : std::nullopt);
}

}  // namespace

ModulePart::ModulePart(torch::nn::Module& module, const std::vector<std::string>& units, Forward forward,
                       const DeviceMesh& mesh, const FsdpOptions& options)
    : ModulePart(module, units, std::move(forward), replicas_along_dp(mesh, options.mode), options) {}

ModulePart::ModulePart(torch::nn::Module& module, const std::vector<std::string>& units, Forward forward,
                       ReplicaMap replicas, const FsdpOptions& options)
    : units_(module, units),
      fsdp_(units_.specs(), over(replicas, options)),
      forward_(std::move(forward)),
      groups_({{&fsdp_, std::move(replicas)}}) {}

at::Tensor ModulePart::forward(const at::Tensor& /*input*/, const MicroBatch& micro_batch) {
  return fsdp_.run([&] { return forward_(micro_batch); });
}

}  // namespace meshtrain
