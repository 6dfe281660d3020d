#pragma once

#include <optional>
#include <vector>

#include "runtime/program/forecast/settings.h"

namespace meshtrain {

/// Returns the mesh of `layout` with the settings of `choices` that are best by MeshForecast::order(). Makes one choice
/// after the other, beginning with `start`, until none of them makes a step noticeably shorter. `start`: the mesh
/// without settings; none when forecast_mesh() refuses it. Returns none when forecast_mesh() refuses everything. Keeps
/// the recipe's own settings when steps are equally long. Without times it compares settings by what they send.
std::optional<MeshForecast> improve(const Recipe& recipe, const MeshLayout& layout, std::optional<MeshForecast> start,
                                    const std::vector<Choice>& choices, const ForecastRequest& request);

}  // namespace meshtrain
