#include "mesh/backends/nccl_job_cuda.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <exception>
#include <stdexcept>

namespace meshtrain::nccl {
namespace {

constexpr std::chrono::milliseconds kLook{250};

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
