#include "mesh/backends/dry_run.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "mesh/backends/mpi/shared_memory/board.h"

namespace meshtrain {
namespace {

/// A collective that ends when the rank waits for it, and has its tensors until then, as long as a transport may.
class DryRunWork final : public Work::State {
 public:
  explicit DryRunWork(const Collective& collective) : output_(collective.output), input_(collective.input) {}
  void wait() override {
    output_.reset();
    input_.reset();
  }

 private:
  at::Tensor output_, input_;
};

class DryRunBackend final : public Backend {
 public:
  /// `members`: ranks of the world, by group rank.
  DryRunBackend(int rank, std::vector<int> members, const DryRunHosts& hosts, const GroupTraits& traits = {})
      : rank_(rank), members_(std::move(members)), hosts_(hosts) {
    if (!hosts_.windows || size() == 1 || traits.messages_only) return;
    layout_ = HostLayout::of(this->hosts(), rank_);
    if (layout_.local_size > 1) hosts_.windows->add_exchange(HostBoard::kRankBytes);
  }
  ~DryRunBackend() override {
    if (layout_.local_size > 1) hosts_.windows->add_exchange(-HostBoard::kRankBytes);
  }
  DryRunBackend(const DryRunBackend&) = delete;
  DryRunBackend& operator=(const DryRunBackend&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Work issue(const Collective& collective) override {
    const bool leaves = collective.kind == Collective::Kind::Message && collective.from == rank_;  // at once
    return leaves ? Work() : Work(std::make_shared<DryRunWork>(collective));
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits& traits) override {
    const auto self = std::find(members.begin(), members.end(), rank_);
    if (self == members.end()) throw std::invalid_argument("dry run: a rank must be in its own part of a split");
    std::vector<int> part;
    for (const int member : members) part.push_back(members_.at(static_cast<size_t>(member)));
    return std::make_shared<DryRunBackend>(static_cast<int>(self - members.begin()), std::move(part), hosts_, traits);
  }

  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) override {
    const int64_t bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
    if (layout_.local_size == 1 || placement == Placement::Private || bytes == 0) return {};
    const auto count = [placement, windows = hosts_.windows](int64_t more) {
      placement == Placement::Common ? windows->add_common(more) : windows->add_own(more);
    };
    count(bytes);
    auto* const end = new std::function<void()>([count, bytes] { count(-bytes); });
    const auto run = [](void* ending) {
      const std::unique_ptr<std::function<void()>> call(static_cast<std::function<void()>*>(ending));
      (*call)();
    };
    at::Tensor tensor = at::empty({0}, options);
    tensor.storage().unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(bytes));
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, end, run, options.device()));
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
    return tensor;
  }

  std::vector<int> hosts() const override {
    std::vector<int> hosts;
    for (const int member : members_) hosts.push_back(member / hosts_.ranks_per_host);
    return hosts;
  }
  int host_ranks() const override { return layout_.local_size; }

 private:
  int rank_;
  std::vector<int> members_;
  DryRunHosts hosts_;
  HostLayout layout_;  // of ranks that share windows
};

}  // namespace

std::shared_ptr<Backend> dry_run_backend(int rank, int size, const DryRunHosts& hosts) {
  if (rank < 0 || rank >= size) {
    throw std::invalid_argument("dry run: rank " + std::to_string(rank) + " is not one of " + std::to_string(size) +
                                " ranks");
  }
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_shared<DryRunBackend>(rank, std::move(members), hosts);
}

}  // namespace meshtrain
