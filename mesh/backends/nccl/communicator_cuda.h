#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/FunctionRef.h>
#include <nccl.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mesh/backend.h"
#include "mesh/backends/nccl/calls.h"
#include "mesh/backends/nccl/job_cuda.h"
#include "mesh/backends/nccl/user_buffers_cuda.h"

namespace meshtrain::nccl {

using Clock = std::chrono::steady_clock;

/// A collective on its stream.
struct Operation {
  std::string text;  ///< describe(), for messages
  Clock::time_point issued;
  FlightMark mark;  ///< reported to when it is seen to be done
  c10::cuda::CUDAEvent done;
  std::mutex mutex;
  std::vector<at::Tensor> tensors;  ///< kept until a stream that waited has taken over, or it is done

  void release();
};

/// One queue of a group: a communicator and a stream.
///
/// Its communicator blocks: ncclGroupEnd returns when the work is on the stream, and nobody polls. (NCCL, src/group.cc:
/// for one that does not block, config.blocking = 0, each group end creates a thread. The setting is fixed when a
/// communicator is made; NCCL_COMM_BLOCKING overrides it.) So a call may wait for other ranks: to connect, to split,
/// to register a window, and in the first collective of an algorithm, which connects it (NCCL_RUNTIME_CONNECT). Such
/// a call has a limit, which the job's thread looks after, and its abort ends it (Member).
class Communicator final : public Member {
 public:
  /// `buffers`: none are registered when it is null. `ranks`: of the mesh, by group rank. `name`: for messages and
  /// NCCL's own log. `max_blocks`: nccl_max_blocks().
  Communicator(std::shared_ptr<Job> job, std::shared_ptr<UserBuffers> buffers, std::vector<int> ranks, std::string name,
               int max_blocks);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Makes the communicator of the world. Throws when the ranks do not come together within the limit.
  void connect(const ncclUniqueId& id, int rank);
  /// Makes the communicator of the ranks of `parent` with the same `color`. Throws as connect().
  void split(Communicator& parent, int color, int key);

  std::shared_ptr<Operation> issue(const Collective& collective, int rank);

  void look() override;
  void abort() override;
  void leave_calls() override;
  void forget(const void* begin) override;

 private:
  /// NCCL's handle of a registered user buffer: one of the two.
  struct BufferHandle {
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
  };
  /// A call of NCCL in progress.
  struct Call {
    const std::string* text;
    bool connects;
    Clock::time_point since;
    std::chrono::seconds limit;
  };

  int size() const { return static_cast<int>(ranks_.size()); }
  ncclConfig_t config() const;
  /// Makes calls of NCCL that may wait for other ranks; calls_ is held. When they fail, or take longer than `limit`,
  /// the job has failed: throws that. `text`: begins messages about them.
  void call(const std::string& text, std::chrono::seconds limit, c10::function_ref<ncclResult_t()> calls) {
    call({&text, /*connects=*/false, Clock::now(), limit}, calls);
  }
  void call(const Call& call, c10::function_ref<ncclResult_t()> calls);
  /// Makes calls of NCCL that make communicator `name`, in the same way.
  void connect(const std::string& name, c10::function_ref<ncclResult_t()> calls);
  void set(ncclComm_t comm);

  ncclResult_t run(const std::vector<NcclCall>& calls, const Collective& collective, const at::Tensor& output);
  ncclResult_t run(const NcclCall& call, ncclDataType_t type, const Collective& collective, const at::Tensor& output);
  void copy(const at::Tensor& from, int64_t from_element, const at::Tensor& to, int64_t to_element, int64_t count);
  /// Registers the user buffer that a tensor lies in, if any, before it is communicated for the first time.
  ncclResult_t register_buffer(const at::Tensor& tensor);
  ncclResult_t deregister(const BufferHandle& registered);
  /// Finalizes the communicator together with the other ranks.
  ncclResult_t finish();
  void forget_done();

  const std::shared_ptr<Job> job_;
  const std::shared_ptr<UserBuffers> buffers_;
  const std::vector<int> ranks_;
  const std::string name_;  // NCCL keeps a pointer to it
  const int max_blocks_;

  std::mutex calls_;  // held while NCCL is called with comm_
  /// Taken with the first collective, because the pool has few streams and gives them out in turns; guarded by calls_.
  std::optional<c10::cuda::CUDAStream> stream_;
  std::map<const void*, BufferHandle> registered_;  // by the address of the buffer; guarded by calls_
  bool symmetric_ = false;                          // a symmetric window was requested; guarded by calls_

  std::mutex mutex_;           // guards what follows, for moments only: the job's thread looks at it
  ncclComm_t comm_ = nullptr;  // changed with calls_ held, too
  bool connected_ = false;
  bool aborted_ = false;  // with the job's abort, which frees it
  std::optional<Call> call_;
  std::deque<std::shared_ptr<Operation>> under_way_;  // in the stream's order
};

}  // namespace meshtrain::nccl
