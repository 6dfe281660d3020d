#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "mesh/backend.h"
#include "mesh/backends/mpi/options.h"
#include "mesh/backends/mpi/rank_pattern.h"
#include "mesh/backends/mpi/reduce.h"
#include "mesh/backends/mpi/shared_memory/board.h"

namespace meshtrain {

/// A collective in a communicator's queue. The engine alone calls advance(), and only while it is first in its queue.
class MpiOperation : public Work::State {
 public:
  /// `mark`: notified when the collective begins, first in its queue, and when it is done.
  explicit MpiOperation(const FlightMark& mark) : mark_(mark) {}
  void wait() final;

  /// Does the work that needs no waiting. Returns true when anything moved.
  virtual bool advance() = 0;
  virtual bool finished() const = 0;

 protected:
  /// Releases the tensors.
  virtual void release() = 0;

 private:
  friend class MpiEngine;
  void settle(std::exception_ptr error);

  FlightMark mark_;
  std::atomic<bool> settled_ = false;
  std::exception_ptr error_;
};

/// Uninitialised memory that grows to the largest request.
class MpiScratch {
 public:
  std::byte* of(int64_t bytes) {
    if (bytes_ < bytes) memory_.reset(new std::byte[static_cast<size_t>(bytes)]);
    bytes_ = std::max(bytes_, bytes);
    return memory_.get();
  }
  std::byte* get() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  int64_t bytes_ = 0;
};

/// Working memory of one chunk of a tensor in transit, kept from operation to operation.
struct MpiSlot {
  bool busy = false;
  int64_t chunk = 0;
  int phase = 0;
  std::vector<MPI_Request> requests;
  std::vector<MPI_Status> statuses;
  std::vector<int64_t> expected;  ///< by request: bytes to be received; -1 for a send

  // The reduction of the phase once its messages have arrived; none without parts.
  std::vector<const std::byte*> parts;
  ReduceKernel kernel = nullptr;
  std::byte* result = nullptr;
  int64_t elements = 0;      ///< of each part and of the result, not yet reduced
  int64_t part_bytes = 1;    ///< of an element of a part
  int64_t result_bytes = 1;  ///< of one of the result

  MpiScratch received, sums, padded;
};

/// The resources of one group.
struct MpiCommunicator {
  static constexpr int kInFlight = 3;

  MpiCommunicator(MPI_Comm communicator, const MpiOptions& options);
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  MPI_Comm comm;
  int rank = 0;
  int size = 1;
  MpiOptions options;
  RankTree tree{1, 2};
  RankGrid grid{1, 2};
  int host = 0;                  ///< a number for this rank's host, another on each
  std::vector<int> hosts = {0};  ///< that of each of its ranks
  uint32_t issued = 0;           ///< operations so far: the same on every rank of the group
  std::array<MpiSlot, kInFlight> slots;
  std::deque<std::shared_ptr<MpiOperation>> queue;  ///< the first one is under way
  std::exception_ptr error;                         ///< the failure that ended this communicator's use

  std::unique_ptr<HostBoard> board;     ///< where several of its ranks are on this host
  std::vector<std::byte> scratch;       ///< of the operation under way, kept for the next
  std::vector<const std::byte*> parts;  ///< likewise
};

/// All of this process's communication. One thread at a time is inside MPI: a thread that waits polls for everyone,
/// and a thread of the engine's own polls while nobody waits and something is under way. It sleeps otherwise.
class MpiEngine {
 public:
  /// Returns the engine. The first call initialises MPI unless the program already has. Throws InputError when the
  /// program initialised it without MPI_THREAD_SERIALIZED.
  static MpiEngine& get();
  /// True between MPI's initialisation and its end.
  static bool running();

  void submit(const std::shared_ptr<MpiCommunicator>& communicator, std::shared_ptr<MpiOperation> operation);
  void wait(const MpiOperation& operation);

  /// Runs blocking calls of MPI, after every operation in progress on this rank has finished.
  void block(const std::function<void()>& calls);

  /// Splits `parent`; collective over it, and only within block(): ranks of one color get a communicator together,
  /// ordered by key; nullptr for MPI_UNDEFINED.
  std::shared_ptr<MpiCommunicator> split(MPI_Comm parent, int color, int key, const MpiOptions& options);

  /// See mpi.h.
  bool meet_at_end(std::optional<std::chrono::milliseconds> limit);

  /// Ends the job, as abort_mpi() of mpi.h.
  [[noreturn]] static void abort(int status);

  /// Frees `comm` the next time that communicators are made.
  void retire(MPI_Comm comm);

 private:
  class Turn;  // a caller's time inside MPI, which the engine's own thread yields to

  MpiEngine();
  static void leave(int status, void*);  // at exit
  void finalize(int status);

  void run();
  bool progress();
  bool advance(MpiCommunicator& communicator);
  bool rest_if_idle(size_t index);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> callers_ = 0;
  bool stopping_ = false;
  bool initialised_here_ = true;  // false: the program initialised MPI, and finalises it
  std::vector<std::shared_ptr<MpiCommunicator>> active_;
  std::vector<std::shared_ptr<MpiCommunicator>> failed_;  // their messages may still be under way
  bool at_end_ = false;                                   // the barrier of meet_at_end() is under way, or done
  MPI_Request everyone_at_end_ = MPI_REQUEST_NULL;
  std::thread thread_;

  std::mutex retired_mutex_;
  std::vector<MPI_Comm> retired_;
};

}  // namespace meshtrain
