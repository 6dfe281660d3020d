#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/program/against/explain.h"

namespace meshtrain {

/// The relation of a parameter's movement, after - before, to the one that the optimizer's formula makes of the
/// program's own gradient.
struct UpdateFacts {
  std::string name;
  double moved = 0, expected = 0;     ///< lengths of the movement, and of the formula's
  double difference = 0;              ///< length, relative to the formula's movement
  double bound = 0;                   ///< what rounding of the weights explains
  double unmoved = 0;                 ///< share of elements that the formula moves, and that stayed
  std::vector<double> variants = {};  ///< the difference of each variant of the formula, if it differs from the first

  bool equal() const { return difference <= bound; }
  bool is(size_t variant) const { return variants.at(variant) <= bound; }
};

/// The comparison of a step's updates.
struct UpdateComparison {
  std::string not_compared;             ///< why not; empty: compared
  std::vector<UpdateFacts> facts = {};  ///< of the parameters that have a gradient
};

/// Compares the updates with the formula of torch's AdamW, Adam or SGD, for the optimizer's first step.
/// `gradient_norm`: the length of the program's gradients, if it reports none.
UpdateComparison compare_updates(const StepDump& dump, const OwnStep& own, double gradient_norm);

/// Explains differences; empty when all are equal.
std::vector<Finding> explain_updates(const UpdateComparison& updates, const StepDump& dump);

}  // namespace meshtrain
