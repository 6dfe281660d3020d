#include "mesh/forwarding.h"

#include <gtest/gtest.h>

#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "mesh/skipped_sums.h"
#include "mesh/staged.h"

namespace meshtrain {
namespace {

/// A backend of ranks that do not exist, with a second queue, windows and hosts. Records the groups that it makes.
class Fake final : public Backend {
 public:
  Fake(int rank, int size, std::shared_ptr<std::vector<GroupTraits>> made)
      : rank_(rank), size_(size), made_(std::move(made)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Collective&) override { return {}; }
  std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits& traits) override {
    made_->push_back(traits);
    return std::make_shared<Fake>(0, static_cast<int>(members.size()), made_);
  }
  std::shared_ptr<Backend> second_queue() override { return std::make_shared<Fake>(rank_, size_, made_); }
  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement) override {
    return at::zeros({numel}, options);
  }
  int host_ranks() const override { return 3; }
  std::vector<int> hosts() const override { return std::vector<int>(static_cast<size_t>(size_), 7); }
  void check() const override { throw std::runtime_error("checked"); }

 private:
  int rank_, size_;
  std::shared_ptr<std::vector<GroupTraits>> made_;
};

/// A backend that records every collective of its group and of the groups made from it.
class Recorder final : public ForwardingBackend {
 public:
  Recorder(std::shared_ptr<Backend> inner, std::shared_ptr<std::vector<std::string>> seen)
      : ForwardingBackend(std::move(inner)), seen_(std::move(seen)) {}
  Work issue(const Collective& collective) override {
    seen_->push_back(std::string(collective.group) + " " + name(collective.kind));
    return inner()->issue(collective);
  }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    return std::make_shared<Recorder>(std::move(part), seen_);
  }

 private:
  std::shared_ptr<std::vector<std::string>> seen_;
};

Group world_of(std::shared_ptr<Backend> backend) {
  std::vector<int64_t> ranks(static_cast<size_t>(backend->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(std::move(backend), "world", ranks, "rank 0");
}

TEST(ForwardingBackend, PassesOnWhatADecoratorDoesNotChange) {
  const auto made = std::make_shared<std::vector<GroupTraits>>();
  const auto seen = std::make_shared<std::vector<std::string>>();
  const Group group = world_of(std::make_shared<Recorder>(std::make_shared<Fake>(2, 4, made), seen));
  EXPECT_EQ(group.rank(), 2);
  EXPECT_EQ(group.size(), 4);
  EXPECT_EQ(group.host_ranks(), 3);
  EXPECT_EQ(group.backend()->hosts(), std::vector<int>(4, 7));
  EXPECT_EQ(group.window(5, at::kFloat, Placement::Common).numel(), 5);
  EXPECT_THROW(group.check(), std::runtime_error);
}

TEST(ForwardingBackend, ADecoratorSeesEveryCollectiveOfEveryGroup) {
  const auto made = std::make_shared<std::vector<GroupTraits>>();
  const auto seen = std::make_shared<std::vector<std::string>>();
  const Group group = world_of(std::make_shared<Recorder>(std::make_shared<Fake>(0, 8, made), seen));
  const DeviceMesh mesh(MeshLayout({{"dp", 2}, {"cp", 2}, {"tp", 2}}), group);
  at::Tensor tensor = at::zeros({2}), full = at::zeros({4});
  mesh.world().barrier();
  mesh.group("tp").all_reduce(tensor);
  mesh.group("dp").second_queue().all_gather(full, tensor);
  mesh.world().split({0, 1}, "shards").reduce_scatter(tensor, full);
  mesh.world().split({0, 1}, "shards").split({0}, "alone").broadcast(tensor, 0);
  EXPECT_EQ(*seen, (std::vector<std::string>{"world barrier", "tp all_reduce", "dp all_gather", "shards reduce_scatter",
                                             "alone broadcast"}));
  EXPECT_EQ(mesh.traffic().total().calls, 4) << "a group of one rank is not counted";
}

TEST(ForwardingBackend, GroupsAreMadeWithTheirNamesAndUrgency) {
  const auto made = std::make_shared<std::vector<GroupTraits>>();
  const Group group = skip_sums(world_of(std::make_shared<Fake>(0, 8, made)), "nothing");
  const DeviceMesh mesh(MeshLayout({{"dp", 2}, {"cp", 2}, {"tp", 2}}), group);
  mesh.world().split({0, 1}, "shards");
  std::map<std::string, Urgency> urgency;
  for (const GroupTraits& traits : *made) urgency[traits.name] = traits.urgency;
  EXPECT_EQ(urgency, (std::map<std::string, Urgency>{{"dp", Urgency::Background},
                                                     {"cp", Urgency::Soon},
                                                     {"tp", Urgency::Awaited},
                                                     {"dp_cp", Urgency::Background},
                                                     {"cp_tp", Urgency::Background},
                                                     {"shards", Urgency::Background}}));
}

TEST(ForwardingBackend, StagedHasNoWindows) {
  const auto made = std::make_shared<std::vector<GroupTraits>>();
  const auto backend = staged(std::make_shared<Fake>(0, 4, made), StagedTensors::All);
  EXPECT_FALSE(backend->window(5, at::kFloat, Placement::Common).defined());
  EXPECT_EQ(backend->host_ranks(), 1);
  EXPECT_EQ(backend->hosts(), std::vector<int>(4, 7));
}

}  // namespace
}  // namespace meshtrain
