#pragma once

#include <functional>

#include "runtime/program/forecast/timeline.h"

namespace meshtrain {

/// Calls of an operator on the CPU as a step makes them.
struct Replay {
  std::function<void()> run;  ///< makes one call, on the next of several sets of tensors; keeps its results
  int num_sets = 1;           ///< after so many calls all memory has been used once
};

/// Returns a replay on tensors of the signature's shapes, memory orders and dtypes. The tensors are allocated now and
/// have small numbers. `call`: what is known of the operator's work.
Replay make_replay(const OperatorSignature& signature, const OperatorCall& call);

}  // namespace meshtrain
