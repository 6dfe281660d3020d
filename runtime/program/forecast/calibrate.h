#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/program/forecast/machine.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/program/telemetry/notice.h"

namespace meshtrain {

/// Returns a warning when measurements scatter; empty when they do not. `spreads`: of each measurement the difference
/// of the second and the fourth of its five repetitions, in order of their seconds, over the third.
std::string scatter_warning(std::vector<double> spreads);

/// Measures the machine of `world`'s ranks for the steps of `recipe`, whose ranks compute on CPUs: every operator that
/// a step calls on any mesh of so many ranks, on all ranks at once, and collectives of the world's own transport by
/// kind, size of group, memory and bytes. `say` gets lines about the progress, and a warning when measurements scatter,
/// on rank 0. Returns the same machine on all ranks. Every rank must call it. Throws InputError when no mesh of so many
/// ranks is possible.
Machine calibrate(const Recipe& recipe, const Group& world, const std::function<void(const Notice&)>& say);

}  // namespace meshtrain
