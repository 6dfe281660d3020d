#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "capture.h"

// The parts of streams and events. One lock protects all of them; work runs without the lock.
namespace meshtrain::emulated {

std::mutex& lock_of_streams();

/// A position in a stream: all work given before it. Passed when the stream has done `count` pieces.
struct Mark {
  CUstream_st* stream = nullptr;
  uint64_t count = 0;

  bool is_passed() const;
};

/// How often a piece of work begins late.
enum class Lateness { None, Seldom, Always };

struct Piece {
  std::function<void()> work;  ///< empty: only waits for `after`
  Mark after;
  Lateness lateness = Lateness::None;
};

}  // namespace meshtrain::emulated

/// A stream. Never freed, so that a Mark stays valid.
struct CUstream_st {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  bool is_legacy = false;
  bool is_destroyed = false;

  uint64_t given = 0, done = 0;
  std::deque<meshtrain::emulated::Piece> waiting;  ///< for the stream's thread
  int wanted = 0;                                  ///< number of waiters, for which the stream is not late
  CUstream_st* waits_for = nullptr;
  std::condition_variable changed;
  std::thread thread;

  std::shared_ptr<meshtrain::emulated::Capture> capture;
  std::vector<cudaGraphNode_t> last_nodes;  ///< of the capture: dependencies of the stream's next node

  bool is_blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
  bool is_idle() const { return given == done; }
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  meshtrain::emulated::Mark mark;                         ///< without a stream: never recorded
  std::shared_ptr<int64_t> time;                          ///< nanoseconds, written when the mark is passed
  std::shared_ptr<meshtrain::emulated::Capture> capture;  ///< the capture of its last record
  std::vector<cudaGraphNode_t> nodes;
};

namespace meshtrain::emulated {

using Lock = std::unique_lock<std::mutex>;

inline bool Mark::is_passed() const {
  return stream == nullptr || stream->done >= count;
}

/// Returns the stream of a handle; null for an invalid one. nullptr and cudaStreamLegacy are the current device's
/// default stream.
CUstream_st* find_stream(cudaStream_t handle, const Lock& lock);

std::vector<CUstream_st*> streams_of(int device, const Lock& lock);

/// Adds work without the rules of captures.
void push(CUstream_st& stream, std::function<void()> work, Lateness lateness, const Lock& lock);
void push_wait(CUstream_st& stream, const Mark& mark, const Lock& lock);
/// Adds the waits that the default stream's rules require before other work of `stream`.
void push_implicit_waits(CUstream_st& stream, const Lock& lock);

void wait_until_passed(const Mark& mark, Lock& lock);
void wait_for_device(int device, Lock& lock);

/// Returns true on a stream's own thread, which must not wait for streams: it destroys the objects that its work held.
bool is_thread_of_stream();
/// Runs `work` soon, on another thread, which may wait.
void do_later(std::function<void()> work);

/// Calls give(), and returns CUDA's error instead of throwing.
cudaError_t try_give(cudaStream_t handle, std::function<void()> work, Lateness lateness = Lateness::Always);

/// Calls run(), and returns CUDA's error; throws what `work` throws.
cudaError_t try_run(cudaStream_t handle, const std::function<void()>& work);

}  // namespace meshtrain::emulated
