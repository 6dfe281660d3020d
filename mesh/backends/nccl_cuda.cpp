#include <ATen/ATen.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "mesh/agree.h"
#include "mesh/backends/local.h"
#include "mesh/backends/nccl.h"
#include "mesh/backends/nccl_calls.h"
#include "mesh/group.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Collective::Kind;

constexpr std::chrono::milliseconds kLook{250};
constexpr std::chrono::seconds kFarewell{10};

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  std::string text = std::string("NCCL: ") + ncclGetErrorString(result);
  const char* const more = comm != nullptr ? ncclGetLastError(comm) : nullptr;
  if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
  return text;
}

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

/// A collective on its stream.
struct Operation {
  std::string text;  ///< describe(), for messages
  Clock::time_point issued;
  c10::cuda::CUDAEvent done;
  std::mutex mutex;
  std::vector<at::Tensor> tensors;  ///< kept until a stream that waited has taken over, or it is done

  void release() {
    std::vector<at::Tensor> kept;
    const std::lock_guard lock(mutex);
    kept.swap(tensors);
  }
};

class Communicator;

/// All communicators of this process: they fail together. A thread of its own looks after them; it issues nothing.
class Job {
 public:
  Job(c10::DeviceIndex gpu, const NcclOptions& options) : gpu_(gpu), options_(options) {}
  ~Job() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    ending_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  c10::DeviceIndex gpu() const { return gpu_; }
  const NcclOptions& options() const { return options_; }

  void enter(Communicator* communicator) {
    const std::lock_guard lock(mutex_);
    communicators_.push_back(communicator);
    if (!thread_.joinable()) thread_ = std::thread([this] { look(); });
  }
  void leave(Communicator* communicator) {
    const std::lock_guard lock(mutex_);
    std::erase(communicators_, communicator);
  }

  /// Throws what ended the job's communication, if anything has.
  void check() const {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }
  bool has_failed() const {
    const std::lock_guard lock(failure_mutex_);
    return !failure_.empty();
  }
  /// The first failure counts.
  void fail(const std::string& message) {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) failure_ = message;
  }

 private:
  void look();

  c10::DeviceIndex gpu_;
  NcclOptions options_;
  mutable std::mutex failure_mutex_;
  std::string failure_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::vector<Communicator*> communicators_;
  std::thread thread_;
};

/// One group's communicator and stream.
class Communicator {
 public:
  Communicator(std::shared_ptr<Job> job, std::string name)
      : job_(std::move(job)),
        name_(std::move(name)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, job_->gpu())) {}

  ~Communicator() {
    if (entered_) job_->leave(this);
    if (comm_ == nullptr) return;
    // One rank alone would wait for the others in vain.
    const bool alone = job_->has_failed() || std::uncaught_exceptions() > 0;
    if (!alone && ncclCommFinalize(comm_) != ncclInvalidArgument && settle(kFarewell) == ncclSuccess) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclConfig_t config() const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = name_.c_str();
    config.splitShare = 0;
    if (const int blocks = nccl_max_blocks(name_); blocks > 0) config.maxCTAs = blocks;
    return config;
  }

  /// The communicator of the world.
  void connect(const ncclUniqueId& id, int size, int rank) {
    ncclConfig_t asked = config();
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, size, id, rank, &asked);
    finish_connecting(result, *this);
  }

  /// A part of `parent`, of the ranks with the same `color`; NCCL_SPLIT_NOCOLOR: of none, but it takes part.
  void split(Communicator& parent, int color, int key) {
    const std::lock_guard lock(parent.mutex_);
    ncclConfig_t asked = config();
    finish_connecting(ncclCommSplit(parent.comm_, color, key, &comm_, &asked), parent);
  }

  /// From here on its failures are everyone's.
  void enter() {
    if (comm_ == nullptr) return;
    entered_ = true;
    job_->enter(this);
  }

  std::shared_ptr<Operation> issue(const Collective& collective, int rank, int size) {
    const auto operation = std::make_shared<Operation>();
    operation->text = describe(collective, size);
    const c10::cuda::CUDAGuard device(job_->gpu());
    const at::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(job_->gpu());
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(current, &capture));
    const std::lock_guard lock(mutex_);
    job_->check();
    if (capture == cudaStreamCaptureStatusNone) forget_done();

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
    if (capture == cudaStreamCaptureStatusNone) under_way_.push_back(operation);
    return operation;
  }

  /// By the job's thread.
  void look() {
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

  /// Ends what runs; its results are worth nothing.
  void abort() {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  void finish_connecting(ncclResult_t result, Communicator& busy) {
    if (result == ncclSuccess || result == ncclInProgress) result = busy.settle(job_->options().connect_limit);
    if (result == ncclSuccess && comm_ != nullptr && &busy != this) result = settle(job_->options().connect_limit);
    if (result == ncclSuccess) return;
    const std::string why = result == ncclInProgress
                                ? "no connection within " + std::to_string(job_->options().connect_limit.count()) + " s"
                                : text_of(result, busy.comm_);
    throw std::runtime_error("communicator of group " + name_ + ": " + why +
                             ": NCCL_DEBUG=INFO says more; parallel.backend: mpi goes without NCCL");
  }

  /// Until NCCL has done what it was asked for, or `limit` has passed: then ncclInProgress.
  ncclResult_t settle(std::chrono::seconds limit) const {
    const Clock::time_point end = Clock::now() + limit;
    for (;;) {
      ncclResult_t state = ncclInProgress;
      const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
      if (result != ncclSuccess) return result;
      if (state != ncclInProgress || Clock::now() > end) return state;
      std::this_thread::yield();
    }
  }

  void copy(const at::Tensor& from, int64_t from_element, const at::Tensor& to, int64_t to_element, int64_t count) {
    const size_t bytes = from.element_size();
    C10_CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(to.data_ptr()) + to_element * bytes,
                                   static_cast<const std::byte*>(from.const_data_ptr()) + from_element * bytes,
                                   count * bytes, cudaMemcpyDeviceToDevice, stream_));
  }

  void run(const std::vector<NcclCall>& calls, const Collective& collective, const at::Tensor& output,
           const Operation& operation) {
    const ncclDataType_t type = type_of(collective);
    const bool reduces = collective.kind == Kind::AllReduce || collective.kind == Kind::ReduceScatter;
    if (reduces && collective.output.scalar_type() == at::kBool && collective.reduce == Reduce::Sum) {
      throw std::invalid_argument(operation.text + ": truth values have no sum");
    }
    const ncclRedOp_t reduce = collective.reduce == Reduce::Sum ? ncclSum : ncclMax;
    const size_t bytes = collective.output.element_size();
    auto* const to = static_cast<std::byte*>(output.data_ptr());
    const auto* const from = static_cast<const std::byte*>(
        collective.input.defined() ? collective.input.const_data_ptr() : output.const_data_ptr());
    ncclResult_t result = ncclSuccess;
    const auto note = [&](ncclResult_t next) {
      if (result == ncclSuccess || result == ncclInProgress) result = next;
    };
    bool communicates = false;
    for (const NcclCall& call : calls) {
      if (call.kind == NcclCall::Kind::Copy) {
        copy(collective.input, call.from, output, call.to, call.count);
      } else {
        communicates = true;
      }
    }
    if (!communicates) return;
    note(ncclGroupStart());
    for (const NcclCall& call : calls) {
      const auto count = static_cast<size_t>(call.count);
      const std::byte* const source = from + call.from * static_cast<int64_t>(bytes);
      std::byte* const target = to + call.to * static_cast<int64_t>(bytes);
      switch (call.kind) {
        case NcclCall::Kind::AllReduce:
          note(ncclAllReduce(target, target, count, type, reduce, comm_, stream_));
          break;
        case NcclCall::Kind::AllGather:
          note(ncclAllGather(source, target, count, type, comm_, stream_));
          break;
        case NcclCall::Kind::ReduceScatter:
          note(ncclReduceScatter(source, target, count, type, reduce, comm_, stream_));
          break;
        case NcclCall::Kind::Broadcast:
          note(ncclBroadcast(target, target, count, type, call.peer, comm_, stream_));
          break;
        case NcclCall::Kind::Send:
          note(ncclSend(source, count, type, call.peer, comm_, stream_));
          break;
        case NcclCall::Kind::Receive:
          note(ncclRecv(target, count, type, call.peer, comm_, stream_));
          break;
        case NcclCall::Kind::Copy:
          break;
      }
    }
    note(ncclGroupEnd());
    // Only when NCCL has handed everything to the stream can an event be put after it.
    if (result == ncclInProgress) result = settle(job_->options().collective_limit);
    if (result == ncclSuccess) return;
    job_->fail(operation.text + ": " + text_of(result, comm_));
    job_->check();
  }

  void forget_done() {
    while (!under_way_.empty() && under_way_.front()->done.query()) {
      under_way_.front()->release();
      under_way_.pop_front();
    }
  }

  std::shared_ptr<Job> job_;
  std::string name_;  // NCCL keeps a pointer to it
  at::cuda::CUDAStream stream_;
  ncclComm_t comm_ = nullptr;
  bool entered_ = false;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Operation>> under_way_;  // in the stream's order
};

void Job::look() {
  c10::cuda::set_device(gpu_);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // to ask after events spoils no capture
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, kLook, [this] { return ends_; })) {
    try {
      for (Communicator* communicator : communicators_) communicator->look();
    } catch (const std::exception& error) {  // the GPU itself
      fail(error.what());
    }
    if (!has_failed()) continue;
    for (Communicator* communicator : communicators_) communicator->abort();
    return;
  }
}

class NcclWork final : public Work::State {
 public:
  NcclWork(std::shared_ptr<Job> job, std::shared_ptr<Operation> operation)
      : job_(std::move(job)), operation_(std::move(operation)) {}

  void wait() override {
    job_->check();
    operation_->done.block(c10::cuda::getCurrentCUDAStream(job_->gpu()));
    operation_->release();
  }

 private:
  std::shared_ptr<Job> job_;
  std::shared_ptr<Operation> operation_;
};

class NcclBackend final : public Backend {
 public:
  /// `ranks`: of the mesh, by group rank.
  NcclBackend(std::shared_ptr<Backend> host, MeshLayout layout, std::vector<int> ranks, std::shared_ptr<Job> job)
      : host_(std::move(host)),
        layout_(std::move(layout)),
        ranks_(std::move(ranks)),
        job_(std::move(job)),
        communicator_(std::make_unique<Communicator>(job_, nccl_group_name(layout_, ranks_))) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  /// Of the world.
  void connect() {
    ncclUniqueId id{};
    const Group group = host_group();
    agree(group, [&] {
      const ncclResult_t result = rank() == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
      if (result != ncclSuccess) throw std::runtime_error(text_of(result, nullptr));
    });
    at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof id)}, at::kByte);
    std::memcpy(bytes.data_ptr(), &id, sizeof id);
    group.broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.const_data_ptr(), sizeof id);
    agree(group, [&] { communicator_->connect(id, size(), rank()); });
    communicator_->enter();
  }

  Work issue(const Collective& collective) override {
    if (collective.kind == Kind::Barrier || collective.output.is_cpu()) return host_->issue(collective);
    return Work(std::make_shared<NcclWork>(job_, communicator_->issue(collective, rank(), size())));
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members) override {
    const Group group = host_group();
    std::shared_ptr<Backend> host = host_->split(members);
    const bool alone = members.size() == 1;
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(ranks_[static_cast<size_t>(member)]);
    auto part = std::make_shared<NcclBackend>(host, layout_, ranks, job_);
    agree(group, [&] {
      c10::cuda::device_synchronize();  // nothing may be under way on the parent
      const int color = alone ? NCCL_SPLIT_NOCOLOR : *std::min_element(members.begin(), members.end());
      part->communicator_->split(*communicator_, color, host->rank());
    });
    if (alone) return local_backend();
    part->communicator_->enter();
    return part;
  }

 private:
  Group host_group() const {
    std::vector<int64_t> everyone(static_cast<size_t>(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    return Group(host_, "nccl", everyone, "rank " + std::to_string(ranks_[static_cast<size_t>(rank())]));
  }

  std::shared_ptr<Backend> host_;
  MeshLayout layout_;
  std::vector<int> ranks_;
  std::shared_ptr<Job> job_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace

std::shared_ptr<Backend> nccl_backend(std::shared_ptr<Backend> host, const MeshLayout& layout,
                                      const NcclOptions& options) {
  if (host->size() == 1) return host;
  std::vector<int> everyone(static_cast<size_t>(host->size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto job = std::make_shared<Job>(c10::cuda::current_device(), options);
  auto backend = std::make_shared<NcclBackend>(std::move(host), layout, std::move(everyone), std::move(job));
  backend->connect();
  return backend;
}

}  // namespace meshtrain
