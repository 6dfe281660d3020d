#pragma once

#include <string>
#include <vector>

#include "runtime/program/verify/choices.h"
#include "runtime/program/verify/comparison.h"
#include "runtime/program/verify/replicas.h"
#include "runtime/program/verify/setup.h"

namespace meshtrain {

/// The source of the tokens of a verification.
struct VerifyData {
  bool made = false;        ///< generated, because the recipe's file does not exist
  int64_t num_samples = 0;  ///< number of samples in the file
};

/// Describes in a few lines what is compared, and which settings differ from the recipe.
std::string describe_verification(const VerifySetup& setup, const VerifyOptions& options, const VerifyData& data);

/// Returns a line about the choices of experts that were replayed; empty when none were.
std::string describe_choices(const ChoiceComparison& choices);

/// Returns a table with one line for each kind of number, the worst one, or with `every_parameter` one line for each
/// number.
std::string comparison_table(const std::vector<Comparison>& all, const MeshLayout& layout, bool every_parameter);

/// Returns "equal: ..." or "DIFFERENT: ...", one line.
std::string verdict(const std::vector<Comparison>& all);

bool all_equal(const std::vector<Comparison>& all);

/// A result for one axis of a mesh whose result differs.
struct AxisFinding {
  Replicas replicas;
  std::vector<Comparison>
      alone;  ///< comparison of a mesh of this axis alone with one rank; empty when it is the only axis
};

/// Returns advice, a few lines, where to look for the fault when a mesh differs.
std::string diagnosis(const std::vector<Comparison>& all, const std::vector<AxisFinding>& axes,
                      const MeshLayout& layout);

}  // namespace meshtrain
