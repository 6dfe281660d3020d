#pragma once

#include <optional>
#include <vector>

#include "runtime/program/forecast/settings.h"

namespace meshtrain {

/// Returns the mesh of `layout` with the settings of `choices` that are best by MeshForecast::order(): each choice is
/// made after the other, from `start` on, until none of them makes a step noticeably shorter. `start`: without
/// settings; none when forecast_mesh() refuses that. Returns none when it refuses everything. Steps of equal length
/// keep the recipe's own settings; without times settings are compared by what they send.
std::optional<MeshForecast> improve(const Recipe& recipe, const MeshLayout& layout, std::optional<MeshForecast> start,
                                    const std::vector<Choice>& choices, const ForecastRequest& request);

}  // namespace meshtrain
