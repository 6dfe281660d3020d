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

// What streams and events are made of. One lock is over all of it; work runs without it.
namespace meshtrain::emulated {

std::mutex& lock_of_streams();

/// A place in a stream: all that was given to it before. Passed when it has done `count` pieces.
struct Mark {
  CUstream_st* stream = nullptr;
  uint64_t count = 0;

  bool is_passed() const;
};

/// How often a piece of work begins later than it could.
enum class Lateness { None, Seldom, Always };

struct Piece {
  uint64_t number = 0;
  std::function<void()> work;  ///< none: only waits for `after`
  Mark after;
  Lateness lateness = Lateness::None;
};

}  // namespace meshtrain::emulated

/// Streams are never freed, so that a Mark stays good.
struct CUstream_st {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  bool is_legacy = false;
  bool is_destroyed = false;

  uint64_t given = 0, done = 0;
  std::deque<meshtrain::emulated::Piece> waiting;  ///< for the stream's thread; run() has its pieces elsewhere
  int wanted = 0;                                  ///< how many wait for it, so that it is not late
  CUstream_st* waits_for = nullptr;
  std::condition_variable changed;
  std::thread thread;

  std::shared_ptr<meshtrain::emulated::Capture> capture;
  std::vector<cudaGraphNode_t> last_nodes;  ///< of the capture: what the stream's next node depends on

  bool is_blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
  bool is_idle() const { return given == done; }
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  meshtrain::emulated::Mark mark;                         ///< of no stream: never recorded
  std::shared_ptr<int64_t> time;                          ///< nanoseconds, written when the mark is passed
  std::shared_ptr<meshtrain::emulated::Capture> capture;  ///< where it was recorded last
  std::vector<cudaGraphNode_t> nodes;
};

namespace meshtrain::emulated {

using Lock = std::unique_lock<std::mutex>;

inline bool Mark::is_passed() const {
  return stream == nullptr || stream->done >= count;
}

/// The stream of a handle: null for none. nullptr and cudaStreamLegacy are the current device's default stream.
CUstream_st* find_stream(cudaStream_t handle, const Lock& lock);

std::vector<CUstream_st*> streams_of(int device, const Lock& lock);

/// Without a capture's rules.
void push(CUstream_st& stream, std::function<void()> work, Lateness lateness, const Lock& lock);
void push_wait(CUstream_st& stream, const Mark& mark, const Lock& lock);
/// What the default stream's rules ask for before anything else is given to `stream`.
void push_implicit_waits(CUstream_st& stream, const Lock& lock);

void wait_until_passed(const Mark& mark, Lock& lock);
void wait_for_device(int device, Lock& lock);

/// Whether this is a stream's own thread, which may not wait for streams: it lets go of what its work held.
bool is_thread_of_stream();
/// Soon, on another thread, which may.
void do_later(std::function<void()> work);

/// give(), with CUDA's error instead of an exception.
cudaError_t try_give(cudaStream_t handle, std::function<void()> work, Lateness lateness = Lateness::Always);

/// run(), likewise; throws what `work` throws.
cudaError_t try_run(cudaStream_t handle, const std::function<void()>& work);

}  // namespace meshtrain::emulated
