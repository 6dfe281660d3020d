#include "mesh/backends/local.h"

#include <stdexcept>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

class LocalBackend final : public Backend {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Work issue(const Collective& collective) override {
    if (collective.input.defined() && !collective.output.is_same(collective.input)) {
      const at::NoGradGuard no_grad;
      at::Tensor output = collective.output;
      // Equal offsets in one storage: the shard is its own slice of the output already.
      const bool in_place =
          output.is_alias_of(collective.input) && output.storage_offset() == collective.input.storage_offset();
      if (!in_place) output.copy_(collective.input);
    }
    return {};
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits&) override {
    if (members.size() != 1)
      throw std::invalid_argument("split: a group of one rank cannot be split into a group of " +
                                  std::to_string(members.size()));
    return local_backend();
  }
};

}  // namespace

std::shared_ptr<Backend> local_backend() {
  static const auto backend = std::make_shared<LocalBackend>();
  return backend;
}

}  // namespace meshtrain
