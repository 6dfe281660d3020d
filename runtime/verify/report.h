#pragma once

#include <string>
#include <vector>

#include "runtime/trainer/trainer.h"
#include "runtime/verify/comparison.h"
#include "runtime/verify/plan.h"
#include "runtime/verify/replicas.h"

namespace meshtrain {

/// Where the tokens of a verification come from.
struct VerifyData {
  bool made = false;        ///< the recipe's file is not there
  int64_t num_samples = 0;  ///< in the file
};

/// What is compared, and what of it is not as the recipe says: a few lines.
std::string describe_verification(const VerifyPlan& plan, const VerifyOptions& options, const VerifyData& data);

/// One line for each kind of number, that of the worst; with `every_parameter` one for each number.
std::string comparison_table(const std::vector<Compared>& all, const MeshLayout& layout, bool every_parameter);

/// "equal: ..." or "DIFFERENT: ...", one line.
std::string verdict(const std::vector<Compared>& all);

bool all_equal(const std::vector<Compared>& all);

/// One axis of a mesh that computed something else.
struct AxisFinding {
  Replicas replicas;
  std::vector<Compared> alone;  ///< the mesh of this axis alone against one rank; empty when there is no other axis
};

/// Where to look when a mesh computed something else: a few lines.
std::string diagnosis(const std::vector<Compared>& all, const std::vector<AxisFinding>& axes, const MeshLayout& layout);

}  // namespace meshtrain
