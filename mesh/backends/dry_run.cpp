#include "mesh/backends/dry_run.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace meshtrain {
namespace {

class DryRunBackend final : public Backend {
 public:
  DryRunBackend(int rank, int size) : rank_(rank), size_(size) {
    if (rank < 0 || rank >= size) {
      throw std::invalid_argument("dry run: rank " + std::to_string(rank) + " of " + std::to_string(size));
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Collective&) override { return {}; }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits&) override {
    const auto self = std::find(members.begin(), members.end(), rank_);
    if (self == members.end()) throw std::invalid_argument("dry run: a rank must be in its own part of a split");
    return dry_run_backend(static_cast<int>(self - members.begin()), static_cast<int>(members.size()));
  }

 private:
  int rank_;
  int size_;
};

}  // namespace

std::shared_ptr<Backend> dry_run_backend(int rank, int size) {
  return std::make_shared<DryRunBackend>(rank, size);
}

}  // namespace meshtrain
