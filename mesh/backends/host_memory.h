#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshtrain {

/// How the ranks of a group lie on hosts: `hosts` hosts with `places` consecutive ranks each.
struct HostLayout {
  int hosts = 1;
  int host = 0;    ///< this rank's
  int places = 1;  ///< ranks on each host
  int place = 0;   ///< this rank's among them

  /// `hosts_of_ranks`: a number for the host of each rank of the group. Places is 1 where hosts have different numbers
  /// of ranks, or ranks of different hosts alternate: no two of them are then taken together.
  static HostLayout of(const std::vector<int>& hosts_of_ranks, int rank);
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

constexpr int64_t kHostPage = 4096;

inline int64_t whole_pages(int64_t bytes) {
  return (bytes + kHostPage - 1) / kHostPage * kHostPage;
}

}  // namespace meshtrain
