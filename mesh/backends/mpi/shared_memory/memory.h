#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshtrain {

/// How the ranks of a group lie on hosts: `hosts` hosts with `local_size` ranks each. Both are in the order of ranks.
struct HostLayout {
  int hosts = 1;
  int host = 0;        ///< this rank's
  int local_size = 1;  ///< ranks on each host
  int local_rank = 0;  ///< this rank's among them

  /// `hosts_of_ranks`: a number for the host of each rank of the group. Places is 1 where hosts have different numbers
  /// of ranks: no two of them are then taken together.
  static HostLayout of(const std::vector<int>& hosts_of_ranks, int rank);
  /// Takes no two of `size` ranks together.
  static HostLayout apart(int size, int rank);

  std::vector<int> ranks = {0};  ///< of the group: those of the first host, then those of the next
  int rank_at(int on_host, int local) const { return ranks[static_cast<size_t>(on_host * local_size + local)]; }
  bool has_this_local_rank(int rank) const;  ///< whether a rank has this one's local_rank, on whatever host

  /// A number for the order in which values of the group are summed: 0 for that of MPI's messages
  /// (MpiOptions::fan_out). Groups of as many ranks with the same number get the same bits of the same values.
  uint64_t order(int fan_out) const;
};

/// Memory mapped by several processes of this host. It has no name: nothing of it stays behind however they end.
class HostMapping {
 public:
  /// `rank_bytes`: what this rank has reserved of them.
  HostMapping(std::byte* base, int64_t bytes, int64_t rank_bytes, uint64_t id);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }
  /// The same in every process that maps it, and no other mapping's.
  uint64_t id() const { return id_; }

 private:
  std::byte* base_;
  int64_t bytes_;
  int64_t rank_bytes_;
  uint64_t id_;
};

struct SharedMemory {
  std::shared_ptr<HostMapping> mapping;
  std::string refusal;  ///< why there is none: the same on every rank
};

/// Memory of zeros for the ranks of each host together, `rank_bytes` (a multiple of kHostPage, the same on all ranks)
/// for each of them; every rank's part is really there before this returns, so that no later write can fail.
/// Collective over `comm`, and blocks. `rank_limit`: the most that a rank may hold in windows.
SharedMemory share_memory(MPI_Comm comm, const HostLayout& layout, int64_t rank_bytes, int64_t rank_limit);

/// From now on these ranks count together what share_memory() reserves, so that groups that ask at the same time are
/// not promised the same bytes. Collective over `host`, all ranks of one host, and blocks; the first call counts.
void reserve_together(MPI_Comm host);

constexpr int64_t kHostPage = 4096;

inline int64_t whole_pages(int64_t bytes) {
  return (bytes + kHostPage - 1) / kHostPage * kHostPage;
}

}  // namespace meshtrain
