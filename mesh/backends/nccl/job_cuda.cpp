#include "mesh/backends/nccl/job_cuda.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <stop_token>

#include "mesh/base/log.h"

namespace meshtrain::nccl {
namespace {

constexpr std::chrono::milliseconds kLook{250};
constexpr std::chrono::seconds kAbort{60};

/// Ends the process with `message` unless it is destroyed within kAbort: what hangs in NCCL cannot be ended otherwise.
std::jthread last_resort(const std::string& message) {
  return std::jthread([message](const std::stop_token& over) {
    std::mutex mutex;
    std::condition_variable_any ended;
    std::unique_lock lock(mutex);
    ended.wait_for(lock, over, kAbort, [] { return false; });
    if (over.stop_requested()) return;
    log_failure(message + "; NCCL did not end within " + std::to_string(kAbort.count()) + " s of its abort");
    std::_Exit(EXIT_FAILURE);
  });
}

}  // namespace

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  std::string text = std::string("NCCL: ") + ncclGetErrorString(result);
  const char* const more = comm != nullptr ? ncclGetLastError(comm) : nullptr;
  if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
  return text;
}

Job::~Job() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Job::enter(Member* member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
  if (!thread_.joinable()) thread_ = std::thread([this] { look(); });
}

void Job::leave(Member* member) {
  const std::lock_guard lock(mutex_);
  std::erase(members_, member);
}

void Job::for_each(const std::function<void(Member&)>& call) {
  const std::lock_guard lock(mutex_);
  for (Member* const member : members_) call(*member);
}

void Job::check() const {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

bool Job::has_failed() const {
  const std::lock_guard lock(failure_mutex_);
  return !failure_.empty();
}

void Job::fail(const std::string& message) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_.empty()) failure_ = message;
}

void Job::abort() {
  const std::lock_guard lock(mutex_);
  abort_members();
}

void Job::abort_members() {
  // Kernels of symmetric windows and ncclShmemAllgather look at no abort flag (NCCL 2.28).
  const std::jthread limit = last_resort([this] {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
  }());
  ncclGroupStart();
  for (Member* const member : members_) member->abort();
  for (Member* const member : members_) member->leave_calls();
  ncclGroupEnd();
}

void Job::look() {
  c10::cuda::set_device(gpu_);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // to ask after events spoils no capture
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, kLook, [this] { return ends_; })) {
    try {
      for (Member* const member : members_) member->look();
    } catch (const std::exception& error) {  // the GPU itself
      fail(error.what());
    }
    if (!has_failed()) continue;
    abort_members();
    return;
  }
}

}  // namespace meshtrain::nccl
