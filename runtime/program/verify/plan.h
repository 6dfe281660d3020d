#pragma once

#include <string>

#include "runtime/program/recipe/run_plan.h"

namespace meshtrain {

struct VerifyOptions {
  std::string precision = "fp64";  ///< fp64 fp32 bf16 bf16_mixed fp16_mixed
  std::string device = "cpu";
  bool shrink = false;
  bool every_parameter = false;  ///< prints every parameter in the table
  int64_t steps = 1;
  std::string
      skipped_sums;  ///< names sums to skip, a fault that verify must find, as skip_sums() takes it; empty: none
};

/// A recipe and the plan to verify it: its run shows in few steps what is compared, and leaves out what has no
/// influence.
struct VerifyPlan {
  Recipe asked;
  Recipe recipe;  ///< has random weights, a constant learning rate that moves them, and the options' precision, steps
                  ///< and model
  RunPlan run;    ///< the plan of `recipe` on its mesh
};

/// Plans the verification. No communication. Throws InputError, naming the recipe, when the recipe cannot run on its
/// mesh even with a small model, when its mesh does not have `num_ranks` ranks, or when the mesh cannot have the
/// requested fault.
VerifyPlan plan_verification(const Recipe& recipe, const VerifyOptions& options, int64_t num_ranks);

/// Returns the recipe in another precision, without what only its own precision has: loss scale, stochastic rounding,
/// reductions in the half, optimizer state of another dtype.
Recipe in_precision(Recipe recipe, const std::string& precision);

/// Returns the recipe of the same training on one rank.
Recipe on_one_rank(Recipe recipe);

}  // namespace meshtrain
