#pragma once

#include <optional>
#include <vector>

#include "runtime/program/plan/settings.h"

namespace meshtrain {

/// Returns the mesh of `layout` with the settings of `choices` that are best by PlannedMesh::order(): each choice is
/// made after the other, from `start` on, until none of them makes a step noticeably shorter. `start`: without
/// settings; none when plan_mesh() refuses that. Returns none when it refuses everything. Steps of equal length keep
/// the recipe's own settings; without times settings are compared by what they send.
std::optional<PlannedMesh> improve(const Recipe& recipe, const MeshLayout& layout, std::optional<PlannedMesh> start,
                                   const std::vector<Choice>& choices, const PlanRequest& request);

}  // namespace meshtrain
