#include "mesh/backends/mpi/engine.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "mesh/backends/mpi/call.h"
#include "mesh/base/error.h"

namespace meshtrain {
namespace {

std::atomic<bool> is_running = false;

/// The time for which a rank that exits with an error, and has not met the others, waits for them to exit too.
constexpr std::chrono::seconds kFarewell{2};

/// Returns the flag that `query`, MPI_Initialized or MPI_Finalized, sets.
bool called(int (*query)(int*)) {
  int answer = 0;
  return query(&answer) == MPI_SUCCESS && answer != 0;
}

}  // namespace

void MpiOperation::wait() {
  MpiEngine::get().wait(*this);
}

void MpiOperation::settle(std::exception_ptr error) {
  error_ = std::move(error);
  if (!error_) {
    release();
    mark_.ended();
  }
  settled_.store(true, std::memory_order_release);
}

MpiCommunicator::MpiCommunicator(MPI_Comm communicator, const MpiOptions& chosen)
    : comm(communicator), options(chosen) {
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  tree = RankTree(size, options.fan_out);
  grid = RankGrid(size, options.fan_out);
}

MpiCommunicator::~MpiCommunicator() {
  if (MpiEngine::running()) MpiEngine::get().retire(comm);
}

class MpiEngine::Turn {
 public:
  explicit Turn(MpiEngine& engine) : engine_(engine) {
    engine_.callers_.fetch_add(1);
    lock_ = std::unique_lock(engine_.mutex_);
  }
  ~Turn() {
    engine_.callers_.fetch_sub(1);
    const bool more = !engine_.active_.empty();
    lock_.unlock();
    if (more) engine_.wake_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Call after each poll of everything in progress.
  void pass(bool moved) {
    if (moved) return patience_.reset();
    lock_.unlock();
    patience_.rest();
    lock_.lock();
  }

 private:
  /// Rests between polls that move nothing: yields at first, which costs no time when a message arrives; then sleeps,
  /// for a small part of the time waited so far, so that a long wait takes no core and is hardly longer.
  class Patience {
   public:
    void reset() { start_.reset(); }
    void rest() {
      const Clock::time_point now = Clock::now();
      if (!start_) start_ = now;
      const Clock::duration waited = now - *start_;
      if (waited < kEager) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / kPart, kShortest, kLongest));
      }
    }

   private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kEager{1};
    static constexpr int kPart = 64;
    static constexpr std::chrono::microseconds kShortest{50}, kLongest{1000};

    std::optional<Clock::time_point> start_;  // of the stillness
  };

  Patience patience_;
  MpiEngine& engine_;
  std::unique_lock<std::mutex> lock_;
};

MpiEngine& MpiEngine::get() {
  static auto* const engine = new MpiEngine;  // outlives every static Group
  return *engine;
}

bool MpiEngine::running() {
  return is_running && !called(MPI_Finalized);
}

MpiEngine::MpiEngine() {
  int provided = MPI_THREAD_SINGLE;
  initialised_here_ = !called(MPI_Initialized);
  if (initialised_here_) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  } else {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided < MPI_THREAD_SERIALIZED && !initialised_here_) {
    throw InputError(
        "this program initialised MPI without MPI_THREAD_SERIALIZED: call MPI_Init_thread with that level, or let "
        "meshtrain initialise MPI");
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    throw std::runtime_error("MPI_Init_thread: this MPI library was built without MPI_THREAD_SERIALIZED");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  is_running = true;
  on_exit(leave, nullptr);
  thread_ = std::thread([this] { run(); });
}

void MpiEngine::submit(const std::shared_ptr<MpiCommunicator>& communicator, std::shared_ptr<MpiOperation> operation) {
  const Turn turn(*this);
  if (communicator->error) return operation->settle(communicator->error);
  communicator->queue.push_back(std::move(operation));
  if (communicator->queue.size() > 1) return;
  communicator->queue.front()->mark_.started();
  active_.push_back(communicator);
  advance(*communicator);
  rest_if_idle(active_.size() - 1);
}

void MpiEngine::wait(const MpiOperation& operation) {
  if (!operation.settled_.load(std::memory_order_acquire)) {
    Turn turn(*this);
    while (!operation.settled_.load(std::memory_order_relaxed)) turn.pass(progress());
  }
  if (operation.error_) std::rethrow_exception(operation.error_);
}

void MpiEngine::block(const std::function<void()>& calls) {
  Turn turn(*this);
  while (!active_.empty()) turn.pass(progress());
  calls();
}

std::shared_ptr<MpiCommunicator> MpiEngine::split(MPI_Comm parent, int color, int key, const MpiOptions& options) {
  {
    const std::lock_guard lock(retired_mutex_);
    for (MPI_Comm& comm : retired_) MPI_Comm_free(&comm);
    retired_.clear();
  }
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(parent, color, key, &comm), "MPI_Comm_split");
  return comm == MPI_COMM_NULL ? nullptr : std::make_shared<MpiCommunicator>(comm, options);
}

bool MpiEngine::meet_at_end(std::optional<std::chrono::milliseconds> limit) {
  const auto start = std::chrono::steady_clock::now();
  Turn turn(*this);
  if (!at_end_) MPI_Ibarrier(MPI_COMM_WORLD, &everyone_at_end_);
  at_end_ = true;
  for (;;) {
    const bool moved = progress();
    int met = 0;
    if (MPI_Test(&everyone_at_end_, &met, MPI_STATUS_IGNORE) != MPI_SUCCESS || met) return true;
    if (limit && std::chrono::steady_clock::now() - start > *limit) return false;
    turn.pass(moved);
  }
}

void MpiEngine::retire(MPI_Comm comm) {
  const std::lock_guard lock(retired_mutex_);
  retired_.push_back(comm);
}

/// Advances every operation in progress by one step. The caller holds the mutex.
bool MpiEngine::progress() {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    moved |= advance(*active_[i]);
    if (!rest_if_idle(i)) ++i;
  }
  return moved;
}

bool MpiEngine::rest_if_idle(size_t index) {
  const std::shared_ptr<MpiCommunicator>& communicator = active_[index];
  if (communicator->error) failed_.push_back(communicator);
  if (!communicator->error && !communicator->queue.empty()) return false;
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  return true;
}

bool MpiEngine::advance(MpiCommunicator& communicator) {
  bool moved = false;
  while (!communicator.queue.empty()) {
    const std::shared_ptr<MpiOperation> first = communicator.queue.front();
    try {
      moved |= first->advance();
    } catch (...) {
      // The queue is kept as it is: messages of the failed operation may still read and write its tensors.
      communicator.error = std::current_exception();
      for (const auto& operation : communicator.queue) operation->settle(communicator.error);
      return true;
    }
    if (!first->finished()) return moved;
    communicator.queue.pop_front();
    first->settle(nullptr);
    if (!communicator.queue.empty()) communicator.queue.front()->mark_.started();
  }
  return moved;
}

void MpiEngine::run() {
  // Polls eagerly while messages move, and leaves the core to the computation when they do not.
  constexpr int kEagerPolls = 64;
  constexpr std::chrono::microseconds kPause{50};
  std::unique_lock lock(mutex_);
  for (int still = 0; !stopping_;) {
    if (active_.empty() || callers_ > 0) {
      wake_.wait(lock);
      still = 0;
      continue;
    }
    still = progress() ? 0 : still + 1;
    lock.unlock();
    if (still < kEagerPolls) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
    lock.lock();
  }
}

void MpiEngine::leave(int status, void*) {
  get().finalize(status);
}

void MpiEngine::finalize(int status) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (!running()) return;  // the program has already called MPI_Finalize

  std::optional<std::chrono::milliseconds> limit;
  if (status != 0 || !active_.empty() || !failed_.empty()) limit = kFarewell;
  if (!meet_at_end(limit)) abort(status != 0 ? status : 1);
  is_running = false;
  if (initialised_here_) MPI_Finalize();
}

void MpiEngine::abort(int status) {
  constexpr unsigned kMostSeconds = 10;
  alarm(kMostSeconds);  // MPI_Abort may wait for a launcher that is out of reach
  std::fflush(nullptr);
  if (running()) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

}  // namespace meshtrain
