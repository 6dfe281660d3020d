#include "tests/support/faulty.h"

namespace meshtrain::testing {
namespace {

class Faulty final : public Backend {
 public:
  Faulty(std::shared_ptr<Backend> inner, std::string purpose)
      : inner_(std::move(inner)), purpose_(std::move(purpose)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work issue(const Collective& collective) override {
    if (collective.kind == Collective::Kind::AllReduce && collective.purpose == purpose_) return Work();
    return inner_->issue(collective);
  }

  std::shared_ptr<Backend> split(const std::vector<int>& members) override {
    return std::make_shared<Faulty>(inner_->split(members), purpose_);
  }

 private:
  std::shared_ptr<Backend> inner_;
  std::string purpose_;
};

}  // namespace

Group without_sums(const Group& world, const std::string& purpose) {
  return Group(std::make_shared<Faulty>(world.backend(), purpose), world.name(), world.ranks(), world.place());
}

}  // namespace meshtrain::testing
