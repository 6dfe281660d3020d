#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fsdp/module.h"
#include "runtime/training/trainer/model_part.h"

namespace meshtrain {

/// A torch::nn::Module as the only part of a model. The module need not know of ranks; ModuleUnits says what the caller
/// must leave alone. Ranks along dp compute different micro-batches, and ranks along cp may. Ranks along tp compute the
/// same. The constructor throws std::invalid_argument when the mesh has several ranks along another axis.
class ModulePart final : public ModelPart {
 public:
  /// Calls the module's forward. Returns a scalar: the sum of the losses of the micro-batch's counted labels.
  using Forward = std::function<at::Tensor(const MicroBatch& micro_batch)>;

  /// `units`: the submodules that FSDP gathers one at a time, as ModuleUnits takes them. `options`: without
  /// groups. Parameters take the values of the mesh's first rank, and are cut over dp unless the mode is NoShard.
  /// Collective over the mesh. `module` must outlive this.
  ModulePart(torch::nn::Module& module, const std::vector<std::string>& units, Forward forward, const DeviceMesh& mesh,
             const FsdpOptions& options = {});

  at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch) override;
  const std::vector<ParameterGroup>& groups() const override { return groups_; }

  /// Gives each parameter of the module memory and values of its own. The module can then be used without this, to
  /// evaluate or in torch::save(). Every rank must call it, between steps; afterwards this and its Trainer may only be
  /// destroyed. Needs memory for the complete model on each rank.
  void release();

  Fsdp& fsdp() { return fsdp_; }

 private:
  ModulePart(torch::nn::Module& module, const std::vector<std::string>& units, Forward forward, ReplicaMap replicas,
             const FsdpOptions& options);

  ModuleUnits units_;
  Fsdp fsdp_;
  Forward forward_;
  std::vector<ParameterGroup> groups_;
};

}  // namespace meshtrain
