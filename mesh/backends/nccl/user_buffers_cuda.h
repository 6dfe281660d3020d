#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "mesh/backends/nccl/job_cuda.h"

namespace meshtrain::nccl {

/// Memory from ncclMemAlloc. A communicator registers a buffer before it first communicates what lies in it: NCCL then
/// reads and writes it in place where links allow, by fewer thread blocks. (NCCL user guide, "User Buffer
/// Registration": all ranks of a collective use registered buffers, or none.)
class UserBuffers : public std::enable_shared_from_this<UserBuffers> {
 public:
  struct Buffer {
    void* begin = nullptr;
    size_t bytes = 0;
    std::vector<int> ranks;  ///< of the mesh: those that made it together, one each
  };

  explicit UserBuffers(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~UserBuffers();
  UserBuffers(const UserBuffers&) = delete;
  UserBuffers& operator=(const UserBuffers&) = delete;

  /// Returns a tensor [numel] of zeros on the job's GPU in a buffer of its own; undefined when there is no memory for
  /// it. `ranks`: those of the mesh that make one together.
  at::Tensor zeros(int64_t numel, const at::TensorOptions& options, std::vector<int> ranks);

  /// Returns the buffer that contains `address`, or null.
  std::shared_ptr<const Buffer> holding(const void* address) const;

 private:
  struct Owner;  // of a tensor's storage

  static void let_go(void* owner);
  /// Notes that no tensor uses the buffer. The next call that makes a buffer frees it, because this may be called under
  /// any lock.
  void retire(const std::shared_ptr<const Buffer>& buffer);
  void free_retired();

  std::shared_ptr<Job> job_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Buffer>> used_, retired_;
};

}  // namespace meshtrain::nccl
