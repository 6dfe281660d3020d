#pragma once

#include <string>
#include <vector>

#include "mesh/group.h"

namespace meshtrain {

/// The name of this process's host, for messages.
std::string host_name();

/// Which ranks of the world run on which host, however a launcher has laid them out: hosts may have different numbers
/// of ranks, and ranks of several hosts may alternate. Hosts are numbered in the order of their lowest ranks. The same
/// on every rank.
class HostMap {
 public:
  /// One host with one rank.
  HostMap() : HostMap(std::vector<int>{0}) {}
  /// `hosts`: a number for the host of each rank, as Backend::hosts() gives it.
  explicit HostMap(const std::vector<int>& hosts);
  /// Of the ranks of `world`, as its backend knows them. No collective.
  static HostMap of(const Group& world) { return HostMap(world.backend()->hosts()); }

  int num_hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int64_t rank) const { return hosts_.at(static_cast<size_t>(rank)); }
  /// Ascending.
  const std::vector<int>& ranks_of(int host) const { return ranks_.at(static_cast<size_t>(host)); }
  /// The place of `rank` among those of its host, from 0.
  int local_rank(int64_t rank) const { return local_.at(static_cast<size_t>(rank)); }
  /// Whether `rank` is the lowest of its host.
  bool is_first_of_host(int64_t rank) const { return local_rank(rank) == 0; }

 private:
  std::vector<int> hosts_;               // by rank
  std::vector<int> local_;               // by rank
  std::vector<std::vector<int>> ranks_;  // by host
};

}  // namespace meshtrain
