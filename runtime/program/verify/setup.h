#pragma once

#include <string>

#include "runtime/program/recipe/decisions.h"
#include "runtime/training/data/samples.h"

namespace meshtrain {

struct VerifyOptions {
  std::string precision = "fp64";  ///< fp64 fp32 bf16 bf16_mixed fp16_mixed
  std::string device = "cpu";
  bool shrink = false;
  bool every_parameter = false;  ///< prints every parameter in the table
  int64_t steps = 1;
  const Samples* samples = nullptr;  ///< in place of the recipe's data, and with the weights of model.hf; null: the
                                     ///< recipe's, and random weights
  std::string
      skipped_sums;  ///< names sums to skip, a fault that verify must find, as skip_sums() takes it; empty: none
};

/// A recipe and the run that verifies it. The run shows in few steps all results that are compared, and leaves out
/// everything without influence on them.
struct VerifySetup {
  Recipe asked;
  Recipe recipe;  ///< has random weights, unless the options have samples, a constant learning rate that moves them,
                  ///< and the options' precision, steps and model
  Decisions decisions;  ///< for `recipe` on its mesh
};

/// Prepares the verification, without communication. Throws InputError, naming the recipe, when the recipe cannot run
/// on its mesh even with a small model, when its mesh does not have `num_ranks` ranks, or when the mesh cannot have the
/// requested fault.
VerifySetup set_up_verification(const Recipe& recipe, const VerifyOptions& options, int64_t num_ranks);

/// Returns the recipe in another precision, without the settings that only its own precision has: loss scale,
/// stochastic rounding, reductions in the half, optimizer state of another dtype.
Recipe in_precision(Recipe recipe, const std::string& precision);

/// Returns the recipe of the same training on one rank.
Recipe on_one_rank(Recipe recipe);

}  // namespace meshtrain
