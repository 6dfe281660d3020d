#pragma once

#include <torch/nn/module.h>

#include <deque>
#include <string>
#include <vector>

#include "fsdp/unit.h"

namespace meshtrain {

/// The parameters of a torch::nn::Module, as units of an Fsdp. The module needs no change: it keeps its own tensors,
/// whose memory Fsdp replaces, and its forward runs inside Fsdp::run(forward). Afterwards do not call to(), clone() or
/// zero_grad(), which Fsdp::begin_step() replaces, nor load into the module's parameters, which Fsdp::write_values()
/// writes. Buffers, such as the statistics of BatchNorm, stay each rank's own.
class ModuleUnits {
 public:
  /// `units`: names of submodules, as in named_modules(), in the order of use. "*" stands for one part of a name:
  /// "blocks.*" makes each member of `blocks` a unit, in the order of the members. Parameters outside these submodules,
  /// and parameters that two of them share, become one unit with whole_step. Throws std::invalid_argument when no
  /// submodule has the name, when the submodule has no parameters of its own, or when the module has none. Weights of
  /// Embedding and EmbeddingBag become Parameter::of_tokens. `module` must outlive this.
  ModuleUnits(torch::nn::Module& module, const std::vector<std::string>& units);

  /// Returns the units, for the constructor of Fsdp. This must outlive the Fsdp.
  const std::vector<UnitSpec>& specs() const { return specs_; }
  /// Returns the parameters, named as in the module. A tensor with several names there is one parameter, under the
  /// first.
  const std::deque<Parameter>& parameters() const { return parameters_; }

 private:
  std::deque<Parameter> parameters_;
  std::vector<UnitSpec> specs_;
};

}  // namespace meshtrain
