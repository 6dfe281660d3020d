#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/program/against/own_step.h"
#include "runtime/program/against/step_dump.h"

namespace meshtrain {

/// The relation of the program's gradient t of a parameter to that of one rank, o. All are lengths relative to that of
/// o, or of all gradients where o is less than a millionth of them.
struct GradientFacts {
  std::string name;
  bool missing = false;      ///< the program has no gradient
  double length = 0;         ///< |t|, not relative
  double own_length = 0;     ///< |o|, not relative
  double difference = 0;     ///< |t - o|
  double bound = 0;          ///< of what rounding explains
  double factor = 0;         ///< c for which |t - c o| is least
  double beyond_factor = 0;  ///< |t - c o|
  double beyond_parts = 0;   ///< |t - sum of w_k o_k|, with PartFit's weights

  bool equal() const { return !missing && difference <= bound; }
  bool is_multiple() const { return !missing && beyond_factor <= bound; }
  bool is_of_parts() const { return !missing && beyond_parts <= bound; }
};

/// The weights of parts with which the sum of their gradients comes closest to the program's gradients of some
/// parameters: 1 for each part is the gradient of one rank.
struct PartFit {
  std::vector<double> weights;  ///< in the order of OwnStep::parts
  double tolerance = 0;         ///< of a weight
};

/// Returns the facts of all parameters, in the order of the model. `rounding`: the lengths by which a step in the
/// program's precision differs from `own`, relative as above; parameters that it lacks have fp32's bound, 1e-4.
std::vector<GradientFacts> gradient_facts(const StepDump& dump, const OwnStep& own,
                                          const std::map<std::string, double>& rounding);

/// Fits the parts to the parameters of `some`, each with the same influence, and sets their beyond_parts.
PartFit fit_parts(const StepDump& dump, const OwnStep& own, std::vector<GradientFacts*> some);

/// Returns by how much each gradient of `other` differs from that of `own`, relative as in GradientFacts.
std::map<std::string, double> distances(const OwnStep& own, const OwnStep& other);

}  // namespace meshtrain
