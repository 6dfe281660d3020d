#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/forecast.h"

namespace meshtrain {

/// What is looked for.
struct PlanRequest {
  int64_t ranks = 1;
  PlanHosts hosts;
  std::optional<int64_t> memory = {};              ///< bytes that a rank may hold; none: any
  std::shared_ptr<const Machine> machine = {};     ///< that steps take time on; null: times are not predicted
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of the products
};

/// A mesh on which a recipe can be trained.
struct PlannedMesh {
  MeshLayout layout;
  RunForecast forecast;
  bool fits = true;              ///< in PlanRequest::memory
  int64_t sent_on_host = 0;      ///< bytes that a rank sends in a step over groups that lie on one host
  int64_t sent_among_hosts = 0;  ///< and over all others

  /// Returns the seconds of a step; 0 without a machine.
  double seconds() const { return forecast.step.time ? forecast.step.time->total() : 0; }
  /// Returns the number of hosts that `group` spans.
  int num_hosts(const std::string& group) const;
};

/// Meshes that cannot be, for the same key of the recipe.
struct RefusedMeshes {
  std::string key;                  ///< "model.num_key_value_heads"
  std::string reason;               ///< of the first of them: the line that `train --check` prints
  std::vector<std::string> meshes;  ///< "dp=1,cp=8,tp=1"
};

struct MeshSearch {
  std::vector<PlannedMesh> meshes;     ///< first those that fit; then the faster ones; without times those that
                                       ///< send less among hosts, then in all
  std::vector<RefusedMeshes> refused;  ///< most meshes first
};

/// Returns every mesh of `ranks` ranks over dp, cp and tp, in the recipe's order of axes, legal or not.
std::vector<MeshLayout> layouts_of(const Recipe& recipe, int64_t ranks);

/// Looks at every mesh of `request.ranks` ranks over dp, cp and tp, in the recipe's order of axes. Legal is what
/// resolve() accepts and the trainer can be built for.
MeshSearch search_meshes(const Recipe& recipe, const PlanRequest& request);

/// Returns the largest train.micro_batch with which `layout` is legal and fits in request.memory, and that rank's
/// bytes. `recipe`'s own one fits.
std::pair<int64_t, int64_t> largest_micro_batch(const Recipe& recipe, const MeshLayout& layout,
                                                const PlanRequest& request);

/// Returns the least number of ranks, the request's times a power of two, of which a mesh fits; none up to 16,384.
std::optional<int64_t> least_ranks(const Recipe& recipe, PlanRequest request);

}  // namespace meshtrain
