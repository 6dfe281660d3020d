#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "mesh/backend.h"

namespace meshtrain {

struct MpiOptions {
  /// Largest message. Longer tensors travel in pieces of this many bytes, several in flight. It also keeps every
  /// count that MPI sees far below 2^31. At least 1; a piece holds one element at the least.
  int64_t piece_bytes = 4 << 20;
  /// The most that a rank may hold in windows, memory that ranks of one host share (Group::allocate), and in what the
  /// groups need beside: without it collectives go through MPI. The environment's MESHTRAIN_WINDOW_MIB lowers it.
  int64_t window_bytes = std::numeric_limits<int64_t>::max();
  /// A number for the host of each rank of the world; empty: as MPI finds them. For tests.
  std::vector<int> hosts = {};
};

/// The ranks that a launcher (mpirun, srun --mpi=pmix) started. One communicator and one queue per group, all
/// progressed by one thread; reductions are computed here, in the order of ranks, halves in fp32. Ranks of one host
/// share memory. Groups with the same number of ranks on each of several hosts sum inside each host, then across: the
/// same bits on every rank and in every run, but in another order than on one host. Groups that come of one split sum
/// in one order, so that what is repeated over them stays equal: where their hosts differ they sum in the order of
/// ranks, and those on several hosts share no memory.
///
/// MPI is initialised at the first call and finalised at exit. Collective: every rank of the job calls it, as often
/// as the others, and gets a communicator of its own each time. Takes host tensors: of any dtype where values are
/// moved; fp64, fp32, bf16, fp16 and int64 where they are reduced (std::invalid_argument otherwise).
/// Throws InputError when a launcher announced several ranks and MPI finds one (a foreign mpirun), and for a
/// MESHTRAIN_WINDOW_MIB that is no number.
///
/// What goes wrong in a collective is thrown by its Work's wait(), and by that of every later one on the same group.
/// A process that exits with a status other than 0, or with collectives unfinished, and that the other ranks do not
/// follow within seconds, takes the job down with it.
std::shared_ptr<Backend> mpi_backend(const MpiOptions& options = {});

/// Ends the whole job, other ranks included, with this exit status. Used when a rank fails alone.
[[noreturn]] void abort_mpi(int status);

/// True when a launcher's environment announces that this process is one of several.
bool launched_by_mpi();

/// How many ranks the launcher's environment announces: mpirun of Open MPI, MPICH, Intel MPI or MVAPICH, or srun; 1
/// when it announces none.
int announced_ranks();

}  // namespace meshtrain
