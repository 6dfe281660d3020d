#pragma once

#include <functional>
#include <vector>

#include "mesh/group.h"

namespace meshtrain {

// Every rank of `world` must call these.

/// Returns the largest, the smallest or the mean `value` of the ranks.
double largest_of(const Group& world, double value);
double least_of(const Group& world, double value);
double mean_of(const Group& world, double value);

/// Returns the seconds of a run when all ranks run it at once: a mean over ranks of the median of batches. Where ranks
/// outnumber cores, a batch ends with that of the last rank, so that a run has the turns of the others in it. First
/// makes `warm_up` runs. Adds the spread of the batches to `spreads`.
double seconds_of(const Group& world, const std::function<void()>& run, int warm_up = 1,
                  std::vector<double>* spreads = nullptr);

}  // namespace meshtrain
