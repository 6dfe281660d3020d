#include "mesh/backends/nccl_communicator_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <thread>

namespace meshtrain::nccl {
namespace {

using Kind = Collective::Kind;

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
      throw std::invalid_argument(std::string("NCCL moves no ") + c10::toString(collective.output.scalar_type()));
  }
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

void Operation::release() {
  std::vector<at::Tensor> kept;
  const std::lock_guard lock(mutex);
  kept.swap(tensors);
}

Communicator::Communicator(std::shared_ptr<Job> job, std::shared_ptr<UserBuffers> buffers, std::string name)
    : job_(std::move(job)),
      buffers_(std::move(buffers)),
      name_(std::move(name)),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, job_->gpu())) {}

Communicator::~Communicator() {
  // One rank alone would wait for the others in vain.
  const bool alone = job_->has_failed() || std::uncaught_exceptions() > 0;
  if (alone) {
    job_->fail("group " + name_ + ": its communicator is gone, as this rank has failed");
    job_->abort();
  }
  if (entered_) job_->leave(this);
  if (comm_ == nullptr) return;
  if (!alone && ncclCommFinalize(comm_) != ncclInvalidArgument && settle(kFarewell) == ncclSuccess) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
}

ncclConfig_t Communicator::config() const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name_.c_str();
  config.splitShare = 0;
  if (const int blocks = nccl_max_blocks(name_); blocks > 0) config.maxCTAs = blocks;
  return config;
}

void Communicator::connect(const ncclUniqueId& id, int size, int rank) {
  ncclConfig_t asked = config();
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, size, id, rank, &asked);
  finish_connecting(result, *this);
}

void Communicator::split(Communicator& parent, int color, int key) {
  const std::lock_guard lock(parent.mutex_);
  job_->check();
  ncclConfig_t asked = config();
  finish_connecting(ncclCommSplit(parent.comm_, color, key, &comm_, &asked), parent);
}

void Communicator::enter() {
  if (comm_ == nullptr) return;
  entered_ = true;
  job_->enter(this);
}

std::shared_ptr<Operation> Communicator::issue(const Collective& collective, int rank, int size) {
  const auto operation = std::make_shared<Operation>();
  operation->text = describe(collective, size);
  const c10::cuda::CUDAGuard device(job_->gpu());
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(job_->gpu());
  const bool captured = is_captured(current);
  const std::lock_guard lock(mutex_);
  job_->check();
  if (!captured) forget_done();

  c10::cuda::CUDAEvent before;
  before.record(current);
  before.block(stream_);
  at::Tensor output = collective.output;
  if (needs_output_apart(collective, rank)) {
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    output = at::empty_like(collective.output);
  }
  run(nccl_calls(collective, rank, size), collective, output, *operation);
  if (!output.is_same(collective.output)) copy(output, 0, collective.output, 0, output.numel());
  operation->done.record(stream_);
  operation->tensors = {collective.output, output};
  if (collective.input.defined()) operation->tensors.push_back(collective.input);
  operation->issued = Clock::now();
  // What a graph captured has no event of its own to ask for; the graph keeps its memory.
  if (!captured) under_way_.push_back(operation);
  return operation;
}

void Communicator::look() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) return;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  forget_done();
  const std::string at = under_way_.empty() ? "group " + name_ : under_way_.front()->text;
  if (result != ncclSuccess || (state != ncclSuccess && state != ncclInProgress)) {
    job_->fail(at + ": " + text_of(result != ncclSuccess ? result : state, comm_));
  } else if (!under_way_.empty() && Clock::now() - under_way_.front()->issued > job_->options().collective_limit) {
    job_->fail(at + ": NCCL: not done " + std::to_string(job_->options().collective_limit.count()) +
               " s after it was issued: another rank did not come to it, or is gone");
  }
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) ncclCommAbort(comm_);
  comm_ = nullptr;
}

void Communicator::forget(const void* begin) {
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(begin);
  if (found == registered_.end()) return;
  if (comm_ != nullptr) ncclCommDeregister(comm_, found->second);
  registered_.erase(found);
}

void Communicator::finish_connecting(ncclResult_t result, Communicator& busy) {
  const std::chrono::seconds limit = job_->options().connect_limit;
  if (result == ncclSuccess || result == ncclInProgress) result = busy.settle(limit);
  if (result == ncclSuccess && comm_ != nullptr && &busy != this) result = settle(limit);
  if (result == ncclSuccess) return;
  const std::string why = result == ncclInProgress ? "no connection within " + std::to_string(limit.count()) + " s"
                                                   : text_of(result, busy.comm_);
  if (&busy != this) {  // a thread of NCCL's would go on to write what it makes here
    ncclCommAbort(busy.comm_);
    busy.comm_ = nullptr;
  }
  throw std::runtime_error("communicator of group " + name_ + ": " + why +
                           ": NCCL_DEBUG=INFO says more; parallel.backend: mpi goes without NCCL");
}

ncclResult_t Communicator::settle(std::chrono::seconds limit) const {
  const Clock::time_point end = Clock::now() + limit;
  for (;;) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
    if (result != ncclSuccess) return result;
    if (state != ncclInProgress || Clock::now() > end || job_->has_failed()) return state;
    std::this_thread::yield();
  }
}

void Communicator::run(const std::vector<NcclCall>& calls, const Collective& collective, const at::Tensor& output,
                       const Operation& operation) {
  const bool reduces = collective.kind == Kind::AllReduce || collective.kind == Kind::ReduceScatter;
  if (reduces && collective.output.scalar_type() == at::kBool && collective.reduce == Reduce::Sum) {
    throw std::invalid_argument(operation.text + ": truth values have no sum");
  }
  ncclResult_t result = ncclSuccess;
  const auto note = [&](ncclResult_t next) {
    if (result == ncclSuccess || result == ncclInProgress) result = next;
  };
  bool communicates = false;
  for (const NcclCall& each : calls) {
    if (each.kind == NcclCall::Kind::Copy) {
      copy(collective.input, each.from, output, each.to, each.count);
    } else {
      communicates = true;
    }
  }
  if (!communicates) return;
  note(register_buffer(output));
  if (collective.input.defined()) note(register_buffer(collective.input));
  note(ncclGroupStart());
  for (const NcclCall& each : calls) {
    if (each.kind != NcclCall::Kind::Copy) note(call(each, collective, output));
  }
  note(ncclGroupEnd());
  // Only when NCCL has handed everything to the stream can an event be put after it.
  if (result == ncclInProgress) result = settle(job_->options().collective_limit);
  if (result == ncclSuccess) return;
  job_->fail(operation.text + ": " + text_of(result, comm_));
  job_->check();
}

ncclResult_t Communicator::call(const NcclCall& call, const Collective& collective, const at::Tensor& output) {
  const ncclDataType_t type = type_of(collective);
  const ncclRedOp_t reduce = collective.reduce == Reduce::Sum ? ncclSum : ncclMax;
  const auto bytes = static_cast<int64_t>(output.element_size());
  const auto count = static_cast<size_t>(call.count);
  std::byte* const target = static_cast<std::byte*>(output.data_ptr()) + call.to * bytes;
  const at::Tensor& input = collective.input.defined() ? collective.input : output;
  const std::byte* const source = static_cast<const std::byte*>(input.const_data_ptr()) + call.from * bytes;
  switch (call.kind) {
    case NcclCall::Kind::AllReduce:
      return ncclAllReduce(target, target, count, type, reduce, comm_, stream_);
    case NcclCall::Kind::AllGather:
      return ncclAllGather(source, target, count, type, comm_, stream_);
    case NcclCall::Kind::ReduceScatter:
      return ncclReduceScatter(source, target, count, type, reduce, comm_, stream_);
    case NcclCall::Kind::Broadcast:
      return ncclBroadcast(target, target, count, type, call.peer, comm_, stream_);
    case NcclCall::Kind::Send:
      return ncclSend(source, count, type, call.peer, comm_, stream_);
    case NcclCall::Kind::Receive:
      return ncclRecv(target, count, type, call.peer, comm_, stream_);
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
                                 static_cast<size_t>(count * bytes), cudaMemcpyDeviceToDevice, stream_));
}

ncclResult_t Communicator::register_buffer(const at::Tensor& tensor) {
  if (!buffers_) return ncclSuccess;
  const UserBuffers::Buffer buffer = buffers_->holding(tensor.const_data_ptr());
  if (buffer.begin == nullptr || registered_.contains(buffer.begin)) return ncclSuccess;
  void* handle = nullptr;
  const ncclResult_t result = ncclCommRegister(comm_, buffer.begin, buffer.bytes, &handle);
  if (result == ncclSuccess) registered_.emplace(buffer.begin, handle);
  return result;
}

void Communicator::forget_done() {
  while (!under_way_.empty() && under_way_.front()->done.query()) {
    under_way_.front()->release();
    under_way_.pop_front();
  }
}

}  // namespace meshtrain::nccl
