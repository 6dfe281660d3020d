#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shared.h"

/// A communicator. Never freed, so that a use after its end is reported.
struct ncclComm {
  int rank = 0, size = 1, device = 0;
  bool is_blocking = true;
  std::string name, file;
  meshtrain::emulated::Shared shared;

  std::atomic<bool> is_ready = false, is_finalized = false, is_gone = false;
  std::atomic<bool> is_aborted = false;
  std::atomic<ncclResult_t> failure = ncclSuccess;  ///< permanent
  std::atomic<int> busy = 0;                        ///< calls that another thread still processes
  std::atomic<int> given = 0;                       ///< groups of operations on their way to a stream, or on it
  std::atomic<int> at_work = 0;                     ///< number of these that are running
  std::atomic<int> in_graphs = 0;                   ///< groups of operations in graphs
  std::atomic<int> inside = 0;                      ///< threads in a call with this communicator
  bool is_connected = false;                        ///< collectives have met their peers; for a blocking communicator
  const ncclComm* parent = nullptr;                 ///< during the split from it
  uint64_t operations = 0;                          ///< completed collectives; written by the running stream
  uint64_t windows = 0;                             ///< number registered so far
  int splits = 0;
  cudaStream_t last_stream = nullptr;
  cudaEvent_t last = nullptr;  ///< end of the last group: other streams wait for it

  std::mutex mutex;
  std::string message;
  std::thread thread;

  /// Returns true when waiting for other ranks is in vain.
  bool ends() const {
    return is_aborted || (parent != nullptr && parent->is_aborted) || (is_ready && shared.has_failed());
  }
};

/// Returns how often this thread has called ncclCommGetAsyncError.
extern "C" uint64_t ncclEmulatedPolls();

namespace meshtrain::emulated {

/// Prints a line to stderr and keeps it for ncclGetLastError. Returns `result`.
ncclResult_t refuse(ncclComm* comm, ncclResult_t result, const std::string& why);

/// Sets the result of ncclCommGetAsyncError, here, and as ncclRemoteError on other ranks.
void fail(ncclComm& comm, ncclResult_t result, const std::string& why);

/// Checks the communicator before every call except ncclCommGetAsyncError and ncclCommAbort: it exists, has not failed,
/// and nothing is in progress.
ncclResult_t check(ncclComm* comm, const char* call);

/// A counter for a thread in a call of NCCL: freeing the communicator during the call ends the process (abort_all()).
class Inside {
 public:
  explicit Inside(ncclComm& comm) : comm_(comm) { ++comm_.inside; }
  ~Inside() { --comm_.inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm& comm_;
};

/// Runs `job`; for a communicator that does not block on another thread, and returns ncclInProgress. In a group it runs
/// at the group's end.
ncclResult_t start(ncclComm& comm, std::function<ncclResult_t()> job);
ncclResult_t start_now(ncclComm& comm, std::function<ncclResult_t()> job);

/// Waits for the job of an earlier start().
void join(ncclComm& comm);

/// Returns how deep this thread is in groups (ncclGroupStart and ncclGroupEnd).
int group_depth();

/// Returns true when all of the memory is registered with `comm`.
bool is_registered(const ncclComm& comm, const void* data, size_t bytes);
/// A position in the symmetric windows of `comm`: the window and the offset in bytes.
struct WindowOffset {
  uint64_t window = 0;  ///< from 1 on, in the order of registration; 0: none
  uint64_t offset = 0;
  bool ends_inside = true;
};
WindowOffset window_offset(const ncclComm& comm, const void* data, size_t bytes);
bool has_windows(const ncclComm& comm);
/// Removes the remaining registrations, as NCCL does at the end of a communicator.
void forget_registered(const ncclComm& comm);

/// Runs `job` at the end of the group that this thread is in.
void start_later(ncclComm& comm, std::function<ncclResult_t()> job);
/// Ends its operations and calls at once, and frees it at the end of the group that this thread is in.
void abort_later(ncclComm& comm);
/// Frees communicators together, when no thread is in a call with them. NCCL frees memory of the device, so this waits
/// for all work on the device, also that of other communicators.
void abort_all(const std::vector<ncclComm*>& comms);

/// Returns the rank of the process in its first communicator.
int world_rank();

/// Returns a number from 0 to 1, which depends on MESHTRAIN_SEED.
double random_number();

}  // namespace meshtrain::emulated
