#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "mesh/backend.h"
#include "mesh/backends/mpi/options.h"

namespace meshtrain {

/// Returns the backend of the ranks that a launcher (mpirun, srun --mpi=pmix) started. One communicator and one queue
/// per group, all progressed by one thread; reductions are computed here, in the order of ranks, halves in fp32. Ranks
/// of one host share memory. Groups with the same number of ranks on each of several hosts sum inside each host, then
/// across: the same bits on every rank and in every run, but in another order than on one host. Groups of one split sum
/// in the same order, so that replicated values stay equal. If their hosts differ, they sum in the order of ranks, and
/// groups on several hosts share no memory.
///
/// Among more than 16 ranks, or hosts, sums are made in levels: over runs of consecutive ranks, in their order, then
/// over runs of such runs, in theirs. Runs are of 16 (RankTree) for all-reduces of up to 1 KiB a rank, and for others
/// of the largest factors of the number of ranks that are at most 16 (RankGrid): 48 ranks are three runs of 16, 40 are
/// four of 10. Partial sums of halves stay in fp32 until the last. So a rank talks to O(log n) others, and bits depend
/// on the number of ranks alone, as they do in smaller groups. Only all_to_all goes from each rank to each.
///
/// MPI is initialised at the first call and finalised at exit. Collective: every rank of the job calls it, as often
/// as the others, and gets a communicator of its own each time. Takes host tensors: of any dtype where values are
/// moved; fp64, fp32, bf16, fp16 and int64 where they are reduced (std::invalid_argument otherwise).
/// Throws LaunchError (launcher.h) when a launcher announced several tasks and MPI finds one (a foreign mpirun, srun
/// without PMIx), and InputError for a MESHTRAIN_WINDOW_MIB that is not a number and for ranks of different builds
/// or commands (same_launch.h).
///
/// A failure of a collective is thrown by its Work's wait(), and by that of every later collective of the same group. A
/// process that exits with a status other than 0, or with unfinished collectives, ends the job, unless the other ranks
/// exit within seconds.
std::shared_ptr<Backend> mpi_backend(const MpiOptions& options = {});

/// Waits until every rank of the job has called it or exits, so that all of them reach the end, however long some clean
/// up. After that a process may exit with any status without ending the others. Returns false when they have not come
/// within `limit`. Returns at once without MPI.
bool meet_at_end(std::optional<std::chrono::milliseconds> limit = std::nullopt);

/// Ends the job, other ranks included, with this exit status. Used when a rank fails alone.
[[noreturn]] void abort_mpi(int status);

}  // namespace meshtrain
