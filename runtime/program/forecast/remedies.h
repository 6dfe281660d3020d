#pragma once

#include <string>

#include "runtime/program/forecast/mesh_forecast.h"

namespace meshtrain {

/// Returns which changes of a recipe on the mesh `layout` let a rank need less memory, each with what it then needs:
/// "a rank needs less with parallel.fsdp.mode=full_shard (4.4 GiB), train.precision=bf16_mixed (3.9 GiB, which fits);
/// with all these settings 1.4 GiB". In the order in which they are worth trying: sharding, more ranks to shard over,
/// halves, activation checkpointing, the micro-batch, more ranks along cp and tp. Only those that the forecast finds to
/// help by a twentieth or more; an empty text when none does. "Which fits" is by ForecastRequest::memory. Throws as
/// forecast_mesh().
std::string memory_remedies(const Recipe& recipe, const MeshLayout& layout, const ForecastRequest& request);

}  // namespace meshtrain
