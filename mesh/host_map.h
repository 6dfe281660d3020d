#pragma once

#include <string>
#include <vector>

#include "mesh/group.h"

namespace meshtrain {

/// Returns the name of this process's host, for messages.
std::string host_name();

/// The hosts of the ranks of a world, in any layout that a launcher chooses: hosts may have different numbers of ranks,
/// and ranks of several hosts may alternate. Hosts are numbered in the order of their lowest ranks. Equal on every
/// rank.
class HostMap {
 public:
  /// One host with one rank.
  HostMap() : HostMap(std::vector<int>{0}) {}
  /// `hosts`: a number for the host of each rank, as Backend::hosts() gives it.
  explicit HostMap(const std::vector<int>& hosts);
  /// Returns the map of the ranks of `world`, as its backend knows them (MPI's own shared-memory split). No collective.
  static HostMap of(const Group& world) { return HostMap(world.backend()->hosts()); }

  int num_hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int64_t rank) const { return hosts_.at(static_cast<size_t>(rank)); }
  /// Returns the ranks of a host, ascending.
  const std::vector<int>& ranks_of(int host) const { return ranks_.at(static_cast<size_t>(host)); }
  /// Returns the index of `rank` among the ranks of its host, from 0.
  int local_rank(int64_t rank) const { return local_.at(static_cast<size_t>(rank)); }
  /// Returns true for the lowest rank of a host.
  bool is_first_of_host(int64_t rank) const { return local_rank(rank) == 0; }

 private:
  std::vector<int> hosts_;               // by rank
  std::vector<int> local_;               // by rank
  std::vector<std::vector<int>> ranks_;  // by host
};

}  // namespace meshtrain
