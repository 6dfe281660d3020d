#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/forecast/mesh_forecast.h"

namespace meshtrain {

/// Meshes that are refused because of the same key of the recipe.
struct RefusedMeshes {
  std::string key;                  ///< "model.num_key_value_heads"
  std::string reason;               ///< of the first of them: the line that `train --check` prints
  std::vector<std::string> meshes;  ///< "dp=1,cp=8,tp=1"
};

struct MeshSearch {
  std::vector<MeshForecast> meshes;    ///< by MeshForecast::order()
  std::vector<RefusedMeshes> refused;  ///< most meshes first
};

/// Returns true when a recipe asks for pipelines: parallel.mesh has pp, or parallel.pipeline has another value than its
/// default.
bool asks_for_pipelines(const Recipe& recipe);

/// Returns every mesh of `ranks` ranks over dp, cp and tp, in the recipe's order of axes, legal or not; also over pp,
/// up to the number of layers, where asks_for_pipelines(), and with each ep that divides the experts of a mixture.
std::vector<MeshLayout> layouts_of(const Recipe& recipe, int64_t ranks);

/// Forecasts every one of layouts_of() `request.ranks` ranks, each with its best settings among those that
/// `request.scope` names. A mesh is legal when resolve() accepts it and the trainer can be built for it.
MeshSearch search_meshes(const Recipe& recipe, const ForecastRequest& request);

/// The largest value of a key with which a mesh is legal and fits in ForecastRequest::memory.
struct LargestFit {
  /// The limit that a larger value would exceed: the memory, or the largest value to be tried (train.global_batch /
  /// dp).
  enum class Bound { Memory, Tried };

  int64_t value = 0;
  int64_t memory = 0;  ///< bytes that a rank then holds
  Bound bound = Bound::Tried;
};

/// Returns the largest train.micro_batch for `mesh`, which fits.
LargestFit largest_micro_batch(const MeshForecast& mesh, const ForecastRequest& request);

/// Returns the largest multiple of train.sequence_length, up to 4,096 times it, for `mesh`, which fits. For GPUs: on
/// hosts operators are tried at their sizes.
LargestFit largest_sequence(const MeshForecast& mesh, const ForecastRequest& request);

/// Returns the least number of ranks, the request's times a power of two, of which a mesh fits. Gives up, with none,
/// after 16,384 ranks, or when twice as many ranks need no less memory.
std::optional<int64_t> least_ranks(const Recipe& recipe, ForecastRequest request);

}  // namespace meshtrain
