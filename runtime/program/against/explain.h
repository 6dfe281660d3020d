#pragma once

#include <string>
#include <vector>

#include "runtime/program/against/gradient_facts.h"
#include "runtime/program/against/own_step.h"
#include "runtime/program/against/step_dump.h"

namespace meshtrain {

/// An explanation of what differs, or of what could not be compared.
struct Finding {
  std::string what;      ///< one sentence: "gradients: summed over dp=2, where the mean belongs"
  std::string evidence;  ///< numbers and parameters from which it follows
};

/// Explains differences of the program's gradients; empty when all are equal.
std::vector<Finding> explain_gradients(const StepDump& dump, const OwnStep& own, std::vector<GradientFacts>& facts);

/// Explains the reported loss; empty when it is the mean loss of the counted labels, within `bound` relative to it.
std::vector<Finding> explain_loss(const StepDump& dump, const OwnStep& own, double bound);

/// Explains the reported norm by the program's own gradients, or where the dump lacks some by those of one rank, if
/// those that it has are equal to them; empty when it is their norm, was not reported, or cannot be judged.
std::vector<Finding> explain_norm(const StepDump& dump, const OwnStep& own, const std::vector<GradientFacts>& facts,
                                  double bound);

/// Returns the length of all the program's gradients together.
double gradient_norm_of(const std::vector<GradientFacts>& facts);

}  // namespace meshtrain
