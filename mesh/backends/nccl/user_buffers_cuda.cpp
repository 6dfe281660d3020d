#include "mesh/backends/nccl/user_buffers_cuda.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain::nccl {
struct UserBuffers::Owner {
  std::shared_ptr<UserBuffers> buffers;
  std::shared_ptr<const Buffer> buffer;
};

void UserBuffers::let_go(void* owner) {
  const std::unique_ptr<Owner> self(static_cast<Owner*>(owner));
  self->buffers->retire(self->buffer);
}

UserBuffers::~UserBuffers() {
  try {
    free_retired();
  } catch (const std::exception&) {  // the GPU is lost, and its memory with it
  }
}

at::Tensor UserBuffers::zeros(int64_t numel, const at::TensorOptions& options, std::vector<int> ranks) {
  const c10::cuda::CUDAGuard guard(job_->gpu());
  free_retired();
  void* begin = nullptr;
  const size_t bytes = std::max<size_t>(static_cast<size_t>(numel) * options.dtype().itemsize(), 1);
  if (ncclMemAlloc(&begin, bytes) != ncclSuccess) {
    cudaGetLastError();  // clears the error; the undefined result reports it
    return {};
  }
  const auto buffer = std::make_shared<const Buffer>(Buffer{begin, bytes, std::move(ranks)});
  {
    const std::lock_guard lock(mutex_);
    used_.push_back(buffer);
  }
  const c10::Device device(c10::kCUDA, job_->gpu());
  auto* const owner = new Owner{shared_from_this(), buffer};
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(begin, owner, &let_go, device),
                             /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::empty({0}, options.device(device)).set_(storage, 0, {numel}, {1});
  return tensor.zero_();
}

std::shared_ptr<const UserBuffers::Buffer> UserBuffers::holding(const void* address) const {
  const std::lock_guard lock(mutex_);
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const auto& buffer : used_) {
    const auto* const begin = static_cast<const std::byte*>(buffer->begin);
    if (byte >= begin && byte < begin + buffer->bytes) return buffer;
  }
  return nullptr;
}

void UserBuffers::retire(const std::shared_ptr<const Buffer>& buffer) {
  const std::lock_guard lock(mutex_);
  std::erase(used_, buffer);
  retired_.push_back(buffer);
}

void UserBuffers::free_retired() {
  std::vector<std::shared_ptr<const Buffer>> retired;
  {
    const std::lock_guard lock(mutex_);
    retired.swap(retired_);
  }
  if (retired.empty()) return;
  const c10::cuda::CUDAGuard guard(job_->gpu());
  c10::cuda::device_synchronize();
  for (const auto& buffer : retired) {
    job_->for_each([&](Member& member) { member.forget(buffer->begin); });
    if (const ncclResult_t result = ncclMemFree(buffer->begin); result != ncclSuccess) {
      job_->fail("user buffers: " + text_of(result, nullptr));
    }
  }
}

}  // namespace meshtrain::nccl
