#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "mesh/backend.h"

namespace meshtrain {

/// The base of every decorator: passes each call on to the backend that it decorates. A decorator overrides what it
/// changes. Its decorate() keeps it around the groups that are made of its own. To see or change each collective,
/// override issue() and decorate().
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Work issue(const Collective& collective) override { return inner_->issue(collective); }
  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits& traits) final {
    return decorate_split(inner_->split(members, traits), members, traits);
  }
  std::shared_ptr<Backend> second_queue() final {
    std::shared_ptr<Backend> queue = inner_->second_queue();
    return queue ? decorate(std::move(queue)) : nullptr;
  }
  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) override {
    return inner_->window(numel, options, placement);
  }
  int host_ranks() const override { return inner_->host_ranks(); }
  std::vector<int> hosts() const override { return inner_->hosts(); }
  void check() const override { inner_->check(); }

 protected:
  /// Returns `part`, a split of inner() into `members`, with this decoration: decorate(part), unless overridden.
  virtual std::shared_ptr<Backend> decorate_split(std::shared_ptr<Backend> part, const std::vector<int>&,
                                                  const GroupTraits&) {
    return decorate(std::move(part));
  }
  /// Returns `part`, a split or second queue of inner(), with this decoration, or without where that changes nothing.
  virtual std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) = 0;

  const std::shared_ptr<Backend>& inner() const { return inner_; }

 private:
  std::shared_ptr<Backend> inner_;
};

}  // namespace meshtrain
