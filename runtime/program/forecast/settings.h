#pragma once

#include <vector>

#include "runtime/program/forecast/mesh_forecast.h"

namespace meshtrain {

/// Ladders of settings, of which at most one setting is taken. On a ladder each setting needs more memory than the one
/// before.
using Choice = std::vector<std::vector<Settings>>;

/// Returns the orders of the axes of `layout` that put groups on other numbers of hosts than the recipe's order does,
/// one for each way; none on one host.
Choice order_choice(const Recipe& recipe, const MeshLayout& layout, const ForecastHosts& hosts);

/// Returns the choices of --search all on a mesh: the sharding mode, with shard size, prefetch and units of sublayers;
/// the micro-batch with activation checkpointing; sequence parallel; the context-parallel algorithm; the order of axes.
/// None of them changes what is trained, except by rounding. forecast_mesh() may refuse some.
std::vector<Choice> choices_of(const Recipe& recipe, const MeshLayout& layout, const ForecastHosts& hosts);

/// Returns the choice of offloaded shards, or of the optimizer's state alone, whose ranks have GPUs.
Choice offload_choice();

/// Returns `settings` without those that change nothing, as the recipe has them already.
Settings that_change(const Recipe& recipe, Settings settings);

}  // namespace meshtrain
