#include "streams.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "access.h"
#include "devices.h"
#include "errors.h"
#include "state.h"

namespace meshtrain::emulated {
namespace {

/// The stream whose thread this is; null on all other threads.
thread_local CUstream_st* stream_of_thread = nullptr;

/// Global state, never destroyed: threads of streams outlive main().
struct All {
  std::mutex mutex;
  std::vector<CUstream_st*> streams;
  std::vector<CUstream_st*> defaults;  // by device
  uint64_t random = 1;
};

All& all() {
  static All& everything = *new All;
  return everything;
}

/// Returns a random number (xorshift64). Call under the lock.
uint64_t random_number() {
  uint64_t& state = all().random;
  static const bool is_seeded = [&] {
    const char* const seed = std::getenv("MESHTRAIN_SEED");
    state = 0x9e3779b97f4a7c15u * (1 + 2 * (seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1));
    return true;
  }();
  static_cast<void>(is_seeded);
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

std::chrono::microseconds delay_of(Lateness lateness) {
  if (lateness == Lateness::None || (lateness == Lateness::Seldom && random_number() % 8 > 0)) return {};
  return std::chrono::microseconds(random_number() % 2048);
}

void hurry(CUstream_st& stream) {
  if (++stream.wanted > 1) return;
  stream.changed.notify_all();
  if (stream.waits_for != nullptr) hurry(*stream.waits_for);
}

void do_not_hurry(CUstream_st& stream) {
  if (--stream.wanted == 0 && stream.waits_for != nullptr) do_not_hurry(*stream.waits_for);
}

void finish(CUstream_st& stream) {
  ++stream.done;
  stream.changed.notify_all();
}

/// Waits on the stream's thread. Meanwhile a waiter for this stream also counts for the other.
void wait_for_other(CUstream_st& stream, const Mark& mark, Lock& lock) {
  stream.waits_for = mark.stream;
  if (stream.wanted > 0) hurry(*mark.stream);
  mark.stream->changed.wait(lock, [&] { return mark.is_passed(); });
  if (stream.wanted > 0) do_not_hurry(*mark.stream);
  stream.waits_for = nullptr;
}

void serve(CUstream_st& stream) {
  stream_of_thread = &stream;
  allow_access();
  Lock lock(lock_of_streams());
  for (;;) {
    stream.changed.wait(lock, [&] { return !stream.waiting.empty() || stream.is_destroyed; });
    if (stream.waiting.empty()) return;
    Piece piece = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    if (!piece.after.is_passed()) wait_for_other(stream, piece.after, lock);
    const auto delay = delay_of(piece.lateness);
    if (delay.count() > 0) stream.changed.wait_for(lock, delay, [&] { return stream.wanted > 0; });
    if (piece.work) {
      lock.unlock();
      try {
        piece.work();
      } catch (const std::exception& error) {
        fail_device(error.what());
      } catch (...) {
        fail_device("something that is no std::exception");
      }
      piece.work = nullptr;
      lock.lock();
    }
    finish(stream);
  }
}

void enqueue(CUstream_st& stream, Piece piece) {
  ++stream.given;
  stream.waiting.push_back(std::move(piece));
  if (!stream.thread.joinable()) stream.thread = std::thread([&stream] { serve(stream); });
  stream.changed.notify_all();
}

CUstream_st& default_stream(int device) {
  auto& defaults = all().defaults;
  if (defaults.empty()) defaults.resize(static_cast<size_t>(std::max(device_count(), 1)));
  CUstream_st*& stream = defaults[static_cast<size_t>(device)];
  if (stream == nullptr) {
    stream = new CUstream_st;
    stream->device = device;
    stream->is_legacy = true;
    all().streams.push_back(stream);
  }
  return *stream;
}

/// Checks that are common to all work: returns the stream or an error.
cudaError_t prepare(cudaStream_t handle, const char* call, const Lock& lock, CUstream_st*& stream) {
  stream = find_stream(handle, lock);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (device_error() != cudaSuccess) return device_error();
  return stream->capture == nullptr ? refuse_implicit(*stream, call, lock) : cudaSuccess;
}

void throw_if(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace

std::mutex& lock_of_streams() {
  return all().mutex;
}

CUstream_st* find_stream(cudaStream_t handle, const Lock&) {
  if (device_count() == 0) return nullptr;
  if (handle == nullptr || handle == cudaStreamLegacy) return &default_stream(use_current_device());
  const auto& streams = all().streams;
  const auto found = std::find(streams.begin(), streams.end(), handle);
  return found == streams.end() || handle->is_destroyed ? nullptr : handle;
}

std::vector<CUstream_st*> streams_of(int device, const Lock&) {
  std::vector<CUstream_st*> streams;
  for (CUstream_st* const stream : all().streams) {
    if (stream->device == device && !stream->is_destroyed) streams.push_back(stream);
  }
  return streams;
}

void push(CUstream_st& stream, std::function<void()> work, Lateness lateness, const Lock&) {
  enqueue(stream, {.work = std::move(work), .after = {}, .lateness = lateness});
}

void push_wait(CUstream_st& stream, const Mark& mark, const Lock&) {
  if (mark.is_passed() || mark.stream == &stream) return;
  enqueue(stream, {.work = nullptr, .after = mark, .lateness = Lateness::None});
}

void push_implicit_waits(CUstream_st& stream, const Lock& lock) {
  if (!stream.is_blocking()) return;
  for (CUstream_st* const other : streams_of(stream.device, lock)) {
    const bool one_is_default = stream.is_legacy != other->is_legacy;
    if (one_is_default && other->is_blocking()) push_wait(stream, {other, other->given}, lock);
  }
}

void wait_until_passed(const Mark& mark, Lock& lock) {
  if (mark.is_passed()) return;
  hurry(*mark.stream);
  mark.stream->changed.wait(lock, [&] { return mark.is_passed(); });
  do_not_hurry(*mark.stream);
}

void wait_for_device(int device, Lock& lock) {
  for (CUstream_st* const stream : streams_of(device, lock)) wait_until_passed({stream, stream->given}, lock);
}

cudaError_t try_give(cudaStream_t handle, std::function<void()> work, Lateness lateness) {
  const Lock lock(lock_of_streams());
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = prepare(handle, "work", lock, stream); error != cudaSuccess) return error;
  if (stream->capture != nullptr) return keep(*stream, std::move(work), lock);
  push_implicit_waits(*stream, lock);
  push(*stream, std::move(work), lateness, lock);
  return cudaSuccess;
}

cudaError_t try_run(cudaStream_t handle, const std::function<void()>& work) {
  Lock lock(lock_of_streams());
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = prepare(handle, "work", lock, stream); error != cudaSuccess) return error;
  if (stream->capture != nullptr) return keep(*stream, work, lock);
  if (stream == stream_of_thread) {  // called by one of its own pieces
    lock.unlock();
    work();
    return cudaSuccess;
  }
  push_implicit_waits(*stream, lock);
  std::exception_ptr problem;
  const auto keep_problem = [&] {
    try {
      work();
    } catch (...) {
      problem = std::current_exception();
    }
  };
  push(*stream, keep_problem, Lateness::None, lock);
  wait_until_passed({stream, stream->given}, lock);
  lock.unlock();
  if (problem) std::rethrow_exception(problem);
  return device_error();
}

void run(cudaStream_t stream, std::function<void()> work) {
  throw_if(try_run(stream, work), "run");
}

void give(cudaStream_t stream, std::function<void()> work) {
  throw_if(try_give(stream, std::move(work)), "give");
}

void launch(cudaStream_t stream, std::function<void()> work) {
  throw_if(try_give(stream, std::move(work), Lateness::Seldom), "launch");
}

bool is_captured(cudaStream_t handle) {
  const Lock lock(lock_of_streams());
  const CUstream_st* const stream = find_stream(handle, lock);
  return stream != nullptr && stream->capture != nullptr;
}

bool is_thread_of_stream() {
  return stream_of_thread != nullptr;
}

void do_later(std::function<void()> work) {
  std::thread([work = std::move(work)] {
    deny_access();
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    work();
  }).detach();
}

/// Makes a stream for cudaStreamCreate.
CUstream_st* add_stream(unsigned flags, int priority) {
  auto* const stream = new CUstream_st;
  stream->device = use_current_device();
  stream->flags = flags;
  stream->priority = priority;
  const Lock lock(lock_of_streams());
  all().streams.push_back(stream);
  return stream;
}

}  // namespace meshtrain::emulated
