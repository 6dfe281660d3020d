#pragma once

#include <vector>

#include "runtime/program/forecast/time_forecast.h"
#include "runtime/program/recipe/decisions.h"

namespace meshtrain {

/// How much attention the samples of a recipe need: packed documents see themselves alone.
class PackedSamples {
 public:
  /// Samples of one document each.
  PackedSamples() = default;
  /// Reads the first samples of the recipe's data, those of some steps. Throws InputError as Mixture does.
  explicit PackedSamples(const Recipe& recipe);

  /// `pairs`: of each sample, the pairs of a query and a key that it sees, over those of one document of its length.
  explicit PackedSamples(std::vector<double> pairs) : pairs_(std::move(pairs)) {}

  /// Shortens the attention of a step, and adds what ranks wait for the one whose samples have most pairs: for each
  /// micro-batch where parameters are gathered for it, else for each step.
  void apply(TimeForecast& time, const Recipe& recipe, const Decisions& decisions) const;

 private:
  std::vector<double> pairs_;  // empty: all are 1
};

}  // namespace meshtrain
