#include "mesh/backends/nccl/nccl.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "mesh/agree.h"
#include "mesh/backends/local.h"
#include "mesh/backends/nccl/calls.h"
#include "mesh/backends/nccl/communicator_cuda.h"
#include "mesh/device/aten.h"
#include "mesh/group.h"

namespace meshtrain {
namespace {

using nccl::Communicator;
using nccl::Job;
using nccl::Operation;
using nccl::UserBuffers;
using Kind = Collective::Kind;

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
  /// `ranks`: world ranks, by group rank.
  NcclBackend(std::shared_ptr<Backend> host, std::vector<int> ranks, GroupTraits traits, std::shared_ptr<Job> job,
              std::shared_ptr<UserBuffers> buffers)
      : host_(std::move(host)),
        ranks_(std::move(ranks)),
        traits_(std::move(traits)),
        job_(std::move(job)),
        buffers_(std::move(buffers)),
        communicator_(std::make_unique<Communicator>(job_, buffers_, ranks_, traits_.name,
                                                     nccl_max_blocks(traits_, job_->options().two_queues))) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  /// Connects the ranks of the world.
  void connect() {
    ncclUniqueId id{};
    const Group group = host_group();
    agree(group, [&] {
      const ncclResult_t result = rank() == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
      if (result != ncclSuccess) throw std::runtime_error(nccl::text_of(result, nullptr));
    });
    at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof id)}, at::kByte);
    std::memcpy(bytes.data_ptr(), &id, sizeof id);
    group.broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.const_data_ptr(), sizeof id);
    agree(group, [&] { communicator_->connect(id, rank()); });
  }

  Work issue(const Collective& collective) override {
    if (collective.kind == Kind::Barrier || collective.output.is_cpu()) return host_->issue(collective);
    return Work(std::make_shared<NcclWork>(job_, communicator_->issue(collective, rank())));
  }

  void check() const override { job_->check(); }
  std::vector<int> hosts() const override { return host_->hosts(); }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits& traits) override {
    std::shared_ptr<Backend> host = host_->split(members, traits);
    const bool alone = members.size() == 1;
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(ranks_[static_cast<size_t>(member)]);
    auto part = std::make_shared<NcclBackend>(host, ranks, traits, job_, buffers_);
    // A rank that is alone has a color too: NCCL 2.28 writes through a null pointer when a split without one fails.
    connect(*part, *std::min_element(members.begin(), members.end()), host->rank());
    if (alone) return local_backend();
    return part;
  }

  std::shared_ptr<Backend> second_queue() override {
    auto queue =
        std::make_shared<NcclBackend>(host_, ranks_, GroupTraits{traits_.name + ".2", traits_.urgency}, job_, buffers_);
    connect(*queue, 0, rank());
    return queue;
  }

  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) override {
    if (!buffers_ || options.device().is_cpu() || placement != Placement::Own) return {};
    const Group group = host_group();
    at::Tensor buffer;
    agree(group, [&] { buffer = buffers_->zeros(numel, options, ranks_); });
    at::Tensor missing = at::full({1}, buffer.defined() ? 0 : 1, at::kLong);
    group.all_reduce(missing, Reduce::Max).wait();
    return missing.item<int64_t>() == 0 ? buffer : at::Tensor();
  }

 private:
  /// Makes the communicator of `part` by a split of this one. Collective over this group.
  void connect(NcclBackend& part, int color, int key) {
    agree(host_group(), [&] {
      c10::cuda::device_synchronize();  // nothing may be under way on the parent
      part.communicator_->split(*communicator_, color, key);
    });
  }

  Group host_group() const {
    std::vector<int64_t> everyone(static_cast<size_t>(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    return Group(host_, "nccl", everyone, "rank " + std::to_string(ranks_[static_cast<size_t>(rank())]));
  }

  std::shared_ptr<Backend> host_;
  std::vector<int> ranks_;
  GroupTraits traits_;
  std::shared_ptr<Job> job_;
  std::shared_ptr<UserBuffers> buffers_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace

extern "C" std::shared_ptr<Backend> meshtrain_nccl_backend(std::shared_ptr<Backend> host, const NcclOptions& options) {
  std::vector<int> everyone(static_cast<size_t>(host->size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto job = std::make_shared<Job>(c10::cuda::current_device(), options);
  auto buffers = options.user_buffers != NcclBuffers::Off ? std::make_shared<UserBuffers>(job) : nullptr;
  auto backend = std::make_shared<NcclBackend>(std::move(host), std::move(everyone), GroupTraits{"world"}, job,
                                               std::move(buffers));
  backend->connect();
  return backend;
}

}  // namespace meshtrain
