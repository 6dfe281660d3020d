#pragma once

#include <string>

#include "runtime/program/forecast/mesh_forecast.h"

namespace meshtrain {

/// Returns the changes of a recipe on the mesh `layout` that reduce a rank's memory, each with the memory that it then
/// needs: "a rank needs less with parallel.fsdp.mode=full_shard (4.4 GiB), train.precision=bf16_mixed (3.9 GiB, which
/// fits); with all these settings 1.4 GiB". They have the order in which they are worth trying: sharding, more ranks to
/// shard over, halves, activation checkpointing, the micro-batch, more ranks along cp, tp and pp. Lists only changes
/// that save a twentieth or more by the forecast; returns an empty text when there are none. "which fits" compares with
/// ForecastRequest::memory. Throws as forecast_mesh() does.
std::string memory_remedies(const Recipe& recipe, const MeshLayout& layout, const ForecastRequest& request);

}  // namespace meshtrain
