#pragma once

#include <torch/nn/module.h>

#include <deque>
#include <string>
#include <vector>

#include "fsdp/unit.h"

namespace meshtrain {

/// The parameters of a torch::nn::Module, as units of an Fsdp. The module need not know: it keeps its own tensors,
/// whose memory Fsdp replaces, and its forward runs inside Fsdp::run(forward). Do not call to(), clone() or load into
/// the module's parameters afterwards; use Fsdp::write_values(). Buffers, such as the statistics of BatchNorm, stay
/// each rank's own, as under DDP.
class ModuleUnits {
 public:
  /// `units`: names of submodules in the order of their use, as named_modules() gives them; "*" stands for one part of
  /// a name: "blocks.*" makes each member of `blocks` a unit, in their order. Parameters outside these submodules, and
  /// those that two of them share, become one unit of the whole step. Throws std::invalid_argument when a name has no
  /// submodule, or one without parameters of its own. `module` must outlive this.
  ModuleUnits(torch::nn::Module& module, const std::vector<std::string>& units);

  /// Returns the units, for the constructor of Fsdp. This must outlive the Fsdp.
  const std::vector<UnitSpec>& specs() const { return specs_; }
  /// The parameters, named as in the module; a tensor that the module has under several names is one, by the first.
  const std::deque<Parameter>& parameters() const { return parameters_; }

 private:
  std::deque<Parameter> parameters_;
  std::vector<UnitSpec> specs_;
};

}  // namespace meshtrain
