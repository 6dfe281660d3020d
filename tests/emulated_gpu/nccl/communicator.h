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

/// A communicator. Never freed, so that its use after the end is told.
struct ncclComm {
  int rank = 0, size = 1, device = 0;
  bool is_blocking = true;
  std::string name, file;
  meshtrain::emulated::Shared shared;

  std::atomic<bool> is_ready = false, is_finalized = false, is_gone = false;
  std::atomic<bool> is_aborted = false;
  std::atomic<ncclResult_t> failure = ncclSuccess;  ///< for good
  std::atomic<int> busy = 0;                        ///< calls that another thread still works at
  std::atomic<int> given = 0;                       ///< groups of operations on their way to a stream, or on it
  std::atomic<int> at_work = 0;                     ///< of these, at work
  std::atomic<int> in_graphs = 0;                   ///< groups of operations that graphs hold
  std::atomic<int> inside = 0;                      ///< threads in a call of it
  bool is_connected = false;                        ///< collectives have met their peers; of one that blocks
  const ncclComm* parent = nullptr;                 ///< while it is split from that
  uint64_t operations = 0;                          ///< done collectives; by the stream at work
  uint64_t windows = 0;                             ///< registered so far
  int splits = 0;
  cudaStream_t last_stream = nullptr;
  cudaEvent_t last = nullptr;  ///< after the last group: another stream waits for it

  std::mutex mutex;
  std::string message;
  std::thread thread;

  /// Whether it waits for others in vain.
  bool ends() const {
    return is_aborted || (parent != nullptr && parent->is_aborted) || (is_ready && shared.has_failed());
  }
};

/// How often this thread has called ncclCommGetAsyncError.
extern "C" uint64_t ncclEmulatedPolls();

namespace meshtrain::emulated {

/// A line on stderr, kept for ncclGetLastError. Returns `result`.
ncclResult_t refuse(ncclComm* comm, ncclResult_t result, const std::string& why);

/// ncclCommGetAsyncError's answer from here on, here and as ncclRemoteError on other ranks.
void fail(ncclComm& comm, ncclResult_t result, const std::string& why);

/// Before every call but ncclCommGetAsyncError and ncclCommAbort: the communicator is there, works, and has nothing in
/// progress.
ncclResult_t check(ncclComm* comm, const char* call);

/// Counts a thread in a call of NCCL: who frees the communicator meanwhile ends the process (abort_all()).
class Inside {
 public:
  explicit Inside(ncclComm& comm) : comm_(comm) { ++comm_.inside; }
  ~Inside() { --comm_.inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm& comm_;
};

/// Does `job`; for a communicator that does not block on another thread, and then returns ncclInProgress. In a group:
/// at its end.
ncclResult_t start(ncclComm& comm, std::function<ncclResult_t()> job);
ncclResult_t start_now(ncclComm& comm, std::function<ncclResult_t()> job);

/// Waits for what start() began before.
void join(ncclComm& comm);

/// For ncclGroupStart and ncclGroupEnd: how deep this thread is in groups.
int group_depth();

/// Whether all of the memory is registered with `comm`.
bool is_registered(const ncclComm& comm, const void* data, size_t bytes);
/// A location in the symmetric windows of `comm`: the window and the byte in it.
struct WindowPlace {
  uint64_t window = 0;  ///< from 1 on, in the order of registration; 0: none
  uint64_t offset = 0;
  bool ends_inside = true;
};
WindowPlace window_place(const ncclComm& comm, const void* data, size_t bytes);
bool has_windows(const ncclComm& comm);
/// As NCCL does with what is left when a communicator goes.
void forget_registered(const ncclComm& comm);

/// At the end of the group that this thread is in.
void start_later(ncclComm& comm, std::function<ncclResult_t()> job);
/// Its operations and calls end at once; it is freed at the end of the group that this thread is in.
void abort_later(ncclComm& comm);
/// Together, when no thread is in a call of theirs any more. NCCL frees memory of the device, so that it waits for all
/// work on it, also for that of other communicators.
void abort_all(const std::vector<ncclComm*>& comms);

/// Of the process, in its first communicator.
int world_rank();

/// A number of 0 to 1 by MESHTRAIN_SEED.
double random_number();

}  // namespace meshtrain::emulated
