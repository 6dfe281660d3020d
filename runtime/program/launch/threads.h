#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/base/cgroup.h"
#include "mesh/group.h"
#include "mesh/host_map.h"

namespace meshtrain {

/// The processors that a rank may use.
struct Processors {
  int64_t cores = 1;        ///< in its affinity mask
  int64_t mask = 0;         ///< a number for the mask: ranks of a host with the same one have the same cores
  int64_t millicores = 0;   ///< thousandths of a core's time that its control group allows; 0: all
  int64_t quota_group = 0;  ///< a number for that group, whose ranks share it
  int64_t asked = 0;        ///< threads that OMP_NUM_THREADS asks for; 0: none

  /// Returns the number of cores, or of the allowed processor time in cores, rounded down, if that is less; at least 1.
  int64_t usable() const;
};

/// Returns the number of threads in a value of OMP_NUM_THREADS. As in OpenMP this is a positive whole number, or a list
/// of them with commas, whose first one counts; blanks may surround each. Returns 0 when `value` is null or blank.
/// Throws InputError for anything else.
int asked_threads(const char* value);

/// Finds the processors of this process. Leaves Processors::asked open.
Processors find_processors(const Cgroups& cgroups = Cgroups());

/// Returns the number of threads for each rank: what OMP_NUM_THREADS asks for, else the cores of its mask divided by
/// the ranks of its host with the same mask, or its group's share of processor time divided by the group's ranks there,
/// whichever is less; at least 1. `processors`: by rank.
std::vector<int> share_threads(const std::vector<Processors>& processors, const HostMap& hosts);

/// Returns "4 threads a rank: 8 cores that 2 ranks share": the threads of rank 0, the reason, and whether the others
/// differ; for logs.
std::string describe_threads(const std::vector<Processors>& processors, const HostMap& hosts);

/// Gives this rank its threads; returns describe_threads(). Collective.
std::string set_threads(const Group& world);

}  // namespace meshtrain
