#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshtrain {

/// The hosts of a group's ranks: `hosts` hosts with `local_size` ranks each. Both are in the order of ranks.
struct HostLayout {
  int hosts = 1;
  int host = 0;        ///< this rank's
  int local_size = 1;  ///< ranks on each host
  int local_rank = 0;  ///< this rank's among them

  /// `hosts_of_ranks`: a number for the host of each rank of the group. `local_size` is 1 where hosts have different
  /// numbers of ranks: then every rank counts as a host of its own.
  static HostLayout of(const std::vector<int>& hosts_of_ranks, int rank);
  /// Makes each of `size` ranks a host of its own.
  static HostLayout apart(int size, int rank);

  std::vector<int> ranks = {0};  ///< of the group: those of the first host, then those of the next
  int rank_at(int on_host, int local) const { return ranks[static_cast<size_t>(on_host * local_size + local)]; }
  bool has_this_local_rank(int rank) const;  ///< true for ranks with this one's local rank on any host

  /// Returns a number for the order in which values of the group are summed: 0 for that of MPI's messages
  /// (MpiOptions::fan_out). Groups of as many ranks with the same number get the same bits of the same values.
  uint64_t order(int fan_out) const;
};

/// Memory mapped by several processes of this host. It has no name, so nothing remains of it, however they end.
class HostMapping {
 public:
  /// `rank_bytes`: the bytes that this rank has reserved.
  HostMapping(std::byte* base, int64_t bytes, int64_t rank_bytes, uint64_t id);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }
  /// Returns a number that is equal in every process that maps this memory, and no other mapping's.
  uint64_t id() const { return id_; }

 private:
  std::byte* base_;
  int64_t bytes_;
  int64_t rank_bytes_;
  uint64_t id_;
};

struct SharedMemory {
  std::shared_ptr<HostMapping> mapping;
  std::string refusal;  ///< why there is no mapping: equal on every rank
};

/// Allocates zeros for the ranks of each host together, `rank_bytes` (a multiple of kHostPage, the same on all ranks)
/// for each of them; every rank's part is backed by memory before this returns, so that no later write can fail.
/// Collective over `comm`, and blocks. `rank_limit`: the most bytes that a rank may hold in windows.
///
/// Refused where MemAvailable, or a limit of a control group (cgroup.h), leaves less than the host's ranks need. The
/// size of /dev/shm sets no bound. The system counts shared pages as resident in each rank that maps them, so compare
/// proportional set sizes (PSS).
SharedMemory share_memory(MPI_Comm comm, const HostLayout& layout, int64_t rank_bytes, int64_t rank_limit);

/// Makes these ranks count together what share_memory() reserves, so that groups that ask at the same time are not
/// promised the same bytes. Collective over `host`, all ranks of one host, and blocks; later calls do nothing.
void reserve_together(MPI_Comm host);

constexpr int64_t kHostPage = 4096;

inline int64_t full_pages(int64_t bytes) {
  return (bytes + kHostPage - 1) / kHostPage * kHostPage;
}

}  // namespace meshtrain
