#include "mesh/backends/nccl/communicator_cuda.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/device_graph_cuda.h"

// CUDA 13 has had no older one.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0), "symmetric windows need NCCL 2.27");

namespace meshtrain::nccl {
namespace {

using Kind = Collective::Kind;

constexpr const char* kConnecting = ": set NCCL_DEBUG=INFO for details, or parallel.backend: mpi to run without NCCL";
// On sm_90 and later NCCL launches a symmetric kernel with programmatic stream serialization. When the variable is set,
// NCCL adds a launch completion event (src/enqueue.cc). It is not known whether CUDA accepts both in one launch.
constexpr const char* kSymmetric =
    ": with parallel.nccl_user_buffers: symmetric try NCCL_LAUNCH_ORDER_IMPLICIT=0 first, then registered";
constexpr std::chrono::seconds kFarewell{10};

ncclDataType_t type_of(const Collective& collective) {
  switch (collective.output.scalar_type()) {
    case at::kDouble:
      return ncclFloat64;
    case at::kFloat:
      return ncclFloat32;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    default:
      throw std::invalid_argument(std::string("NCCL cannot move tensors of dtype ") +
                                  c10::toString(collective.output.scalar_type()));
  }
}

}  // namespace

void Operation::release() {
  std::vector<at::Tensor> kept;
  const std::lock_guard lock(mutex);
  kept.swap(tensors);
}

Communicator::Communicator(std::shared_ptr<Job> job, std::shared_ptr<UserBuffers> buffers, std::vector<int> ranks,
                           std::string name, int max_blocks)
    : job_(std::move(job)),
      buffers_(std::move(buffers)),
      ranks_(std::move(ranks)),
      name_(std::move(name)),
      max_blocks_(max_blocks) {
  job_->enter(this);
}

Communicator::~Communicator() {
  try {
    const std::lock_guard one(calls_);
    // One rank alone would wait for the others in vain.
    if (std::uncaught_exceptions() > 0) {
      job_->fail("group " + name_ + ": its communicator no longer exists, because this rank has failed");
    }
    if (!job_->has_failed() && comm_ != nullptr) {
      call("group " + name_ + ", its end", kFarewell, [this] { return finish(); });
    }
  } catch (const std::exception&) {  // the job has failed
  }
  if (job_->has_failed()) job_->abort();
  job_->leave(this);
}

ncclConfig_t Communicator::config() const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.commName = name_.c_str();
  config.splitShare = 0;
  if (max_blocks_ > 0) config.maxCTAs = max_blocks_;
  return config;
}

void Communicator::connect(const ncclUniqueId& id, int rank) {
  const std::lock_guard one(calls_);
  ncclConfig_t asked = config();
  connect(name_, [&] {
    // Within a group the communicator exists before the call that waits, so that it can be aborted.
    ncclGroupStart();
    ncclComm_t made = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&made, size(), id, rank, &asked);
    set(made);
    const ncclResult_t end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
  });
  const std::lock_guard lock(mutex_);
  connected_ = true;
}

void Communicator::split(Communicator& parent, int color, int key) {
  const std::scoped_lock both(parent.calls_, calls_);
  ncclConfig_t asked = config();
  // Until it is made its parent's abort is its own, too.
  parent.connect(name_, [&] {
    ncclComm_t made = nullptr;
    const ncclResult_t result = ncclCommSplit(parent.comm_, color, key, &made, &asked);
    set(made);  // also where it failed: to be aborted
    return result;
  });
  const std::lock_guard lock(mutex_);
  connected_ = true;
}

void Communicator::set(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  comm_ = comm;
}

void Communicator::connect(const std::string& name, c10::function_ref<ncclResult_t()> calls) {
  const std::string text = "communicator of group " + name;
  call({&text, /*connects=*/true, Clock::now(), job_->options().connect_limit}, calls);
}

void Communicator::call(const Call& call, c10::function_ref<ncclResult_t()> calls) {
  job_->check();
  const auto mark = [this](const std::optional<Call>& made) {
    const std::lock_guard lock(mutex_);
    call_ = made;
  };
  mark(call);
  ncclResult_t result = ncclSuccess;
  try {
    result = calls();
  } catch (...) {
    mark({});
    throw;
  }
  mark({});
  if (result == ncclSuccess) return;
  const std::string why = result == ncclInProgress
                              ? "NCCL: communicators are non-blocking: unset NCCL_COMM_BLOCKING, also in nccl.conf"
                              : text_of(result, comm_);
  const bool symmetric = symmetric_ && result != ncclRemoteError;  // else the other rank reports the reason
  job_->fail(*call.text + ": " + why + (call.connects ? kConnecting : symmetric ? kSymmetric : ""));
  job_->check();
}

std::shared_ptr<Operation> Communicator::issue(const Collective& collective, int rank) {
  const auto operation = std::make_shared<Operation>();
  operation->text = describe(collective, size());
  const c10::cuda::CUDAGuard device(job_->gpu());
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(job_->gpu());
  const bool captured = cuda::is_captured(current);
  const bool reduces = collective.kind == Kind::AllReduce || collective.kind == Kind::ReduceScatter;
  if (reduces && collective.output.scalar_type() == at::kBool && collective.reduce == Reduce::Sum) {
    throw RankError<std::invalid_argument>(operation->text + ": tensors of dtype bool cannot be summed");
  }
  const std::lock_guard one(calls_);
  if (!stream_) stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, job_->gpu());
  job_->check();
  if (!captured) {
    const std::lock_guard lock(mutex_);
    forget_done();
  }

  c10::cuda::CUDAEvent before;
  before.record(current);
  before.block(*stream_);
  at::Tensor output = collective.output;
  if (needs_output_apart(collective, rank)) {
    const c10::cuda::CUDAStreamGuard on_stream(*stream_);
    output = at::empty_like(collective.output);
  }
  call(operation->text, job_->options().collective_limit,
       [&] { return run(nccl_calls(collective, rank, size()), collective, output); });
  if (!output.is_same(collective.output)) copy(output, 0, collective.output, 0, output.numel());
  operation->done.record(*stream_);
  operation->tensors = {collective.output, output};
  if (collective.input.defined()) operation->tensors.push_back(collective.input);
  operation->issued = Clock::now();
  // A captured operation has no event of its own to query; the graph keeps its memory.
  if (captured) {
    collective.mark.ended();
    return operation;
  }
  operation->mark = collective.mark;
  const std::lock_guard lock(mutex_);
  under_way_.push_back(operation);
  return operation;
}

void Communicator::look() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr && !call_) return;
  const auto is_late = [](Clock::time_point since, std::chrono::seconds limit) { return Clock::now() - since > limit; };
  const auto late = [&](const std::string& text, std::chrono::seconds limit) {
    job_->fail(text + ": NCCL: not complete " + std::to_string(limit.count()) +
               " s after it was issued: another rank did not reach it, or has ended");
  };
  if (call_ && is_late(call_->since, call_->limit)) {
    if (!call_->connects) return late(*call_->text, call_->limit);
    job_->fail(*call_->text + ": no connection within " + std::to_string(call_->limit.count()) + " s" + kConnecting);
    return;
  }
  if (!connected_ || comm_ == nullptr) return;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  forget_done();
  if (result != ncclSuccess || (state != ncclSuccess && state != ncclInProgress)) {
    const std::string at = !under_way_.empty() ? under_way_.front()->text : call_ ? *call_->text : "group " + name_;
    job_->fail(at + ": " + text_of(result != ncclSuccess ? result : state, comm_));
  } else if (!under_way_.empty() && is_late(under_way_.front()->issued, job_->options().collective_limit)) {
    late(under_way_.front()->text, job_->options().collective_limit);
  }
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || aborted_) return;
  aborted_ = true;
  ncclCommAbort(comm_);
}

void Communicator::leave_calls() {
  const std::lock_guard one(calls_);
  if (aborted_) set(nullptr);  // else it was split meanwhile, and is aborted when it is destroyed
}

void Communicator::forget(const void* begin) {
  const std::lock_guard one(calls_);
  const auto found = registered_.find(begin);
  if (found == registered_.end()) return;
  if (comm_ != nullptr) deregister(found->second);
  registered_.erase(found);
}

ncclResult_t Communicator::finish() {
  // NCCL may not use a buffer that is deregistered.
  if (!registered_.empty()) cudaStreamSynchronize(*stream_);
  for (const auto& [begin, registered] : registered_) deregister(registered);
  registered_.clear();
  const ncclResult_t result = ncclCommFinalize(comm_);
  if (result != ncclSuccess) return result;
  ncclComm_t finished = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) finished = std::exchange(comm_, nullptr);
  }
  return ncclCommDestroy(finished);
}

ncclResult_t Communicator::run(const std::vector<NcclCall>& calls, const Collective& collective,
                               const at::Tensor& output) {
  bool communicates = false;
  for (const NcclCall& each : calls) {
    if (each.kind == NcclCall::Kind::Copy) {
      copy(collective.input, each.from, output, each.to, each.count);
    } else {
      communicates = true;
    }
  }
  if (!communicates) return ncclSuccess;
  const ncclDataType_t type = type_of(collective);
  ncclResult_t result = register_buffer(output);
  if (result == ncclSuccess && collective.input.defined()) result = register_buffer(collective.input);
  if (result != ncclSuccess) return result;
  ncclGroupStart();
  for (const NcclCall& each : calls) {
    if (each.kind != NcclCall::Kind::Copy && result == ncclSuccess) result = run(each, type, collective, output);
  }
  const ncclResult_t end = ncclGroupEnd();
  return result != ncclSuccess ? result : end;
}

ncclResult_t Communicator::run(const NcclCall& call, ncclDataType_t type, const Collective& collective,
                               const at::Tensor& output) {
  const ncclRedOp_t reduce = collective.reduce == Reduce::Sum ? ncclSum : ncclMax;
  const auto bytes = static_cast<int64_t>(output.element_size());
  const auto count = static_cast<size_t>(call.count);
  std::byte* const target = static_cast<std::byte*>(output.data_ptr()) + call.to * bytes;
  const at::Tensor& input = collective.input.defined() ? collective.input : output;
  const std::byte* const source = static_cast<const std::byte*>(input.const_data_ptr()) + call.from * bytes;
  switch (call.kind) {
    case NcclCall::Kind::AllReduce:
      return ncclAllReduce(target, target, count, type, reduce, comm_, *stream_);
    case NcclCall::Kind::AllGather:
      return ncclAllGather(source, target, count, type, comm_, *stream_);
    case NcclCall::Kind::ReduceScatter:
      return ncclReduceScatter(source, target, count, type, reduce, comm_, *stream_);
    case NcclCall::Kind::Broadcast:
      return ncclBroadcast(target, target, count, type, call.peer, comm_, *stream_);
    case NcclCall::Kind::Send:
      return ncclSend(source, count, type, call.peer, comm_, *stream_);
    case NcclCall::Kind::Receive:
      return ncclRecv(target, count, type, call.peer, comm_, *stream_);
    case NcclCall::Kind::Copy:
      break;
  }
  return ncclSuccess;
}

void Communicator::copy(const at::Tensor& from, int64_t from_element, const at::Tensor& to, int64_t to_element,
                        int64_t count) {
  const auto bytes = static_cast<int64_t>(from.element_size());
  C10_CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(to.data_ptr()) + to_element * bytes,
                                 static_cast<const std::byte*>(from.const_data_ptr()) + from_element * bytes,
                                 static_cast<size_t>(count * bytes), cudaMemcpyDeviceToDevice, *stream_));
}

ncclResult_t Communicator::register_buffer(const at::Tensor& tensor) {
  if (!buffers_) return ncclSuccess;
  const std::shared_ptr<const UserBuffers::Buffer> buffer = buffers_->holding(tensor.const_data_ptr());
  if (!buffer || registered_.contains(buffer->begin)) return ncclSuccess;
  BufferHandle made;
  // Among other ranks than those that made it together, memory may be laid out in another way.
  const bool symmetric =
      job_->options().user_buffers == NcclBuffers::Symmetric && std::ranges::all_of(ranks_, [&](int rank) {
        return std::ranges::find(buffer->ranks, rank) != buffer->ranks.end();
      });
  symmetric_ = symmetric_ || symmetric;
  const ncclResult_t result =
      symmetric ? ncclCommWindowRegister(comm_, buffer->begin, buffer->bytes, &made.window, NCCL_WIN_COLL_SYMMETRIC)
                : ncclCommRegister(comm_, buffer->begin, buffer->bytes, &made.handle);
  if (result == ncclSuccess) registered_.emplace(buffer->begin, made);
  return result;
}

ncclResult_t Communicator::deregister(const BufferHandle& registered) {
  // Null where NCCL was told to register nothing (NCCL_LOCAL_REGISTER=0).
  if (registered.window != nullptr) return ncclCommWindowDeregister(comm_, registered.window);
  return registered.handle != nullptr ? ncclCommDeregister(comm_, registered.handle) : ncclSuccess;
}

void Communicator::forget_done() {
  while (!under_way_.empty() && under_way_.front()->done.query()) {
    under_way_.front()->mark.ended();
    under_way_.front()->release();
    under_way_.pop_front();
  }
}

}  // namespace meshtrain::nccl
