#pragma once

#include <string>

#include "mesh/layout.h"
#include "runtime/recipe/run_plan.h"

namespace meshtrain {

struct VerifyOptions {
  std::string precision = "fp64";  ///< fp64 fp32 bf16 bf16_mixed fp16_mixed
  std::string device = "cpu";
  bool shrink = false;
  bool every_parameter = false;  ///< in the table
  int64_t steps = 1;
  std::string skipped_sums;  ///< a fault to be found, as skip_sums() takes it; empty: none
};

/// A recipe, and what verify makes of it: what is compared must show in few steps, and what cannot matter is left out.
struct VerifyPlan {
  Recipe asked;
  Recipe recipe;  ///< random weights, a constant learning rate that shows, the options' precision, steps and model
  RunPlan run;    ///< the plan of `recipe` on its mesh
};

/// Throws InputError, naming the recipe, when it cannot run on its mesh, whatever it is shrunk to, when its mesh is
/// not of `num_ranks`, or when a fault is asked for that the mesh cannot have. No communication.
VerifyPlan plan_verification(const Recipe& recipe, const VerifyOptions& options, int64_t num_ranks);

/// The same training on one rank.
Recipe on_one_rank(Recipe recipe);

}  // namespace meshtrain
