#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mesh/backend.h"
#include "mesh/backends/nccl_calls.h"
#include "mesh/backends/nccl_job_cuda.h"
#include "mesh/backends/nccl_user_buffers_cuda.h"

namespace meshtrain::nccl {

using Clock = std::chrono::steady_clock;

/// A collective on its stream.
struct Operation {
  std::string text;  ///< describe(), for messages
  Clock::time_point issued;
  c10::cuda::CUDAEvent done;
  std::mutex mutex;
  std::vector<at::Tensor> tensors;  ///< kept until a stream that waited has taken over, or it is done

  void release();
};

/// One group's communicator and stream.
class Communicator final : public Member {
 public:
  /// `buffers`: none are registered when it is null.
  Communicator(std::shared_ptr<Job> job, std::shared_ptr<UserBuffers> buffers, std::string name);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// The communicator of the world.
  void connect(const ncclUniqueId& id, int size, int rank);
  /// A part of `parent`, of the ranks with the same `color`; NCCL_SPLIT_NOCOLOR: of none, but it takes part.
  void split(Communicator& parent, int color, int key);
  /// From here on its failures are everyone's.
  void enter();

  std::shared_ptr<Operation> issue(const Collective& collective, int rank, int size);

  void look() override;
  void abort() override;
  void forget(const void* begin) override;

 private:
  ncclConfig_t config() const;
  void finish_connecting(ncclResult_t result, Communicator& busy);
  /// Until NCCL has done what it was asked for, or `limit` has passed, or the job has failed: then ncclInProgress.
  ncclResult_t settle(std::chrono::seconds limit) const;
  void run(const std::vector<NcclCall>& calls, const Collective& collective, const at::Tensor& output,
           const Operation& operation);
  ncclResult_t call(const NcclCall& call, const Collective& collective, const at::Tensor& output);
  void copy(const at::Tensor& from, int64_t from_element, const at::Tensor& to, int64_t to_element, int64_t count);
  /// Registers the user buffer that a tensor lies in, if any, before it is communicated for the first time.
  ncclResult_t register_buffer(const at::Tensor& tensor);
  void forget_done();

  std::shared_ptr<Job> job_;
  std::shared_ptr<UserBuffers> buffers_;
  std::string name_;  // NCCL keeps a pointer to it
  c10::cuda::CUDAStream stream_;
  ncclComm_t comm_ = nullptr;
  bool entered_ = false;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Operation>> under_way_;  // in the stream's order
  std::map<const void*, void*> registered_;           // NCCL's handle of a buffer, by where it begins
};

}  // namespace meshtrain::nccl
