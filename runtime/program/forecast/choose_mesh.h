#pragma once

#include <string>

#include "mesh/group.h"
#include "runtime/program/forecast/search.h"

namespace meshtrain {

/// A mesh that was chosen for a number of ranks.
struct ChosenMesh {
  MeshLayout layout;
  std::string reason;  ///< one line for people
};

/// Returns the fastest mesh of `world`'s ranks that fits in the machine's memory, the same on all ranks: rank 0
/// searches. Every rank must call it. Throws InputError, the same on all ranks, when no mesh is possible or fits.
ChosenMesh choose_mesh(const Recipe& recipe, const Group& world, const Machine& machine);

/// Returns the fastest mesh of `num_ranks` ranks that are not started, on as many hosts as forecast_request() assumes.
/// Throws likewise. Not collective.
ChosenMesh choose_mesh(const Recipe& recipe, int64_t num_ranks, const Machine& machine);

/// Returns what a run of `recipe` needs on a mesh, in one line: "46.7 MiB a rank, 39.3 MiB sent a step, 113 ms a step";
/// without a machine no time.
std::string describe_forecast(const RunForecast& run);

}  // namespace meshtrain
