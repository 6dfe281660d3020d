#include "mesh/device_mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/forwarding.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::world;

const std::vector<std::set<std::string>> kSets{{},           {"dp"},       {"tp"},       {"cp"},
                                               {"dp", "tp"}, {"dp", "cp"}, {"tp", "cp"}, {"dp", "tp", "cp"}};

/// Returns every way to write `ranks` as a product of three, in every order of the axes.
std::vector<MeshLayout> all_layouts(int64_t ranks) {
  std::vector<MeshLayout> layouts;
  std::vector<std::string> order{"cp", "dp", "tp"};
  do {
    for (int64_t a = 1; a <= ranks; ++a) {
      for (int64_t b = 1; a * b <= ranks; ++b) {
        if (ranks % (a * b) != 0) continue;
        layouts.push_back(MeshLayout({{order[0], a}, {order[1], b}, {order[2], ranks / a / b}}));
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return layouts;
}

void expect_group(const DeviceMesh& mesh, const std::set<std::string>& axes) {
  const Group& group = mesh.group(axes);
  const std::vector<int64_t> ranks = mesh.layout().group({axes.begin(), axes.end()}, mesh.rank());
  ASSERT_EQ(group.ranks(), ranks);
  ASSERT_EQ(group.size(), static_cast<int>(ranks.size()));
  ASSERT_EQ(ranks[static_cast<size_t>(group.rank())], mesh.rank());
  // The group really has these ranks, in this order.
  at::Tensor gathered = at::empty({group.size()}, at::kLong);
  group.all_gather(gathered, at::full({1}, mesh.rank(), at::kLong)).wait();
  for (int i = 0; i < group.size(); ++i) {
    ASSERT_EQ(gathered[i].item<int64_t>(), ranks[static_cast<size_t>(i)]) << mesh.layout().describe();
  }
}

TEST(DeviceMesh, HasEveryGroupOfEveryFactorisationInEveryOrder) {
  for (const MeshLayout& layout : all_layouts(world().size())) {
    const DeviceMesh mesh(layout, world());
    EXPECT_EQ(mesh.rank(), world().rank());
    EXPECT_EQ(mesh.size(), world().size());
    for (const Axis& axis : layout.axes()) {
      EXPECT_EQ(mesh.size(axis.name), axis.size);
      EXPECT_EQ(mesh.coordinate(axis.name), layout.coordinate(world().rank(), axis.name));
    }
    for (const std::set<std::string>& axes : kSets) {
      expect_group(mesh, axes);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(DeviceMesh, NamesGroupsInTheOrderOfTheLayout) {
  const int64_t n = world().size();
  const MeshLayout layout =
      MeshLayout::fit({{"tp", n % 2 == 0 ? 2 : 1}, {"cp", n % 4 == 0 ? 2 : 1}, {"dp", 0}}, {"tp", "dp", "cp"}, n);
  const DeviceMesh mesh(layout, world());
  EXPECT_EQ(mesh.world().name(), "world");
  EXPECT_EQ(mesh.group({"cp", "dp", "tp"}).name(), n == 1 ? "local" : "world");
  EXPECT_THROW(mesh.group("ep"), InputError) << "a group of one would sum nothing";
  EXPECT_THROW(mesh.group({"tp", "ep"}), InputError);
  EXPECT_THROW(mesh.part({"dp", "ep"}), InputError);
  EXPECT_EQ(mesh.group(std::set<std::string>{}).size(), 1);
  EXPECT_EQ(mesh.group("tp").name(), n % 2 == 0 ? "tp" : "local");
  if (n == 4) {
    EXPECT_EQ(mesh.group({"dp", "cp"}).name(), "cp");  // dp has one rank
  }
  if (n == 8) {
    EXPECT_EQ(mesh.group({"cp", "dp"}).name(), "dp_cp");
    EXPECT_EQ(mesh.group({"cp", "tp"}).name(), "tp_cp");
  }
  const std::string coordinate = "rank " + std::to_string(mesh.rank()) + " (" + layout.describe(mesh.rank()) + ")";
  EXPECT_EQ(mesh.world().coordinate_text(), coordinate);
  EXPECT_EQ(mesh.group("tp").coordinate_text(), coordinate);
  EXPECT_EQ(mesh.group(std::set<std::string>{}).coordinate_text(), coordinate);
}

/// A backend that counts the groups made of a world that does not exist.
class CountingBackend final : public ForwardingBackend {
 public:
  explicit CountingBackend(int size) : ForwardingBackend(dry_run_backend(0, size)) {}
  int splits = 0;

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    ++splits;
    return part;
  }
};

TEST(DeviceMesh, MakesTheGroupsOfTrainingAtOnceAndOthersWhenAskedFor) {
  const auto backend = std::make_shared<CountingBackend>(16384);
  std::vector<int64_t> ranks(16384);
  std::iota(ranks.begin(), ranks.end(), 0);
  const DeviceMesh mesh(MeshLayout({{"dp", 256}, {"cp", 8}, {"tp", 8}}), Group(backend, "world", ranks, "rank 0"));
  EXPECT_EQ(backend->splits, 5) << "one rank may ask for these alone";
  EXPECT_EQ(mesh.group({"dp", "cp", "tp"}).size(), 16384);
  EXPECT_EQ(backend->splits, 5) << "that is the world";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(mesh.group("tp").size(), 8);
    EXPECT_EQ(mesh.group({"dp", "cp"}).size(), 2048);
    EXPECT_EQ(mesh.group({"cp", "tp"}).size(), 64);
    EXPECT_EQ(mesh.group("tp").name(), "tp");
  }
  EXPECT_EQ(backend->splits, 5);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(mesh.group({"dp", "tp"}).size(), 2048);
  EXPECT_EQ(backend->splits, 6);
}

TEST(DeviceMesh, CountsWhatItsGroupsCommunicate) {
  const int n = world().size();
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"tp", n}}), world());
  at::Tensor tensor = at::ones({64}, at::kFloat);
  mesh.group("tp").with_purpose("tp.linear").all_reduce(tensor).wait();
  mesh.group("dp").all_reduce(tensor).wait();
  EXPECT_EQ(mesh.traffic().total("tp", "tp.linear").sent_bytes, 2 * (n - 1) * 256 / n);
  EXPECT_EQ(mesh.traffic().total().calls, n == 1 ? 0 : 1);
}

TEST(DeviceMesh, ATrainingAxisThatTheLayoutLacksIsAGroupOfOne) {
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}}), world());
  EXPECT_EQ(mesh.group("tp").size(), 1);
  EXPECT_EQ(mesh.group({"dp", "tp"}).size(), world().size());
}

TEST(DeviceMesh, PartsAreMeshesOfTheRanksAlongTheirAxes) {
  const int64_t n = world().size(), outer = n % 2 == 0 ? 2 : 1, tp = n % 4 == 0 ? 2 : 1;
  const DeviceMesh mesh(MeshLayout({{"pp", outer}, {"dp", n / outer / tp}, {"tp", tp}}), world());
  const DeviceMesh stage = mesh.part({"dp", "tp"});
  EXPECT_EQ(stage.layout().describe(), MeshLayout({{"dp", n / outer / tp}, {"tp", tp}}).describe());
  EXPECT_EQ(stage.rank(), mesh.rank() % (n / outer));
  for (const std::string axis : {"dp", "tp"}) {
    EXPECT_EQ(stage.coordinate(axis), mesh.coordinate(axis));
    EXPECT_EQ(stage.group(axis).ranks(), mesh.group(axis).ranks()) << "world ranks, for messages";
  }
  EXPECT_EQ(stage.world().ranks(), mesh.group({"dp", "tp"}).ranks());
  EXPECT_EQ(stage.world().coordinate_text(), mesh.world().coordinate_text());
  EXPECT_EQ(stage.part({"tp"}).world().ranks(), mesh.group("tp").ranks());
  at::Tensor sum = at::full({1}, mesh.rank(), at::kLong);
  stage.world().all_reduce(sum).wait();
  const int64_t first = mesh.coordinate("pp") * n / outer, last = first + n / outer - 1;
  EXPECT_EQ(sum.item<int64_t>(), (first + last) * (last - first + 1) / 2) << "of this stage's ranks alone";
  EXPECT_EQ(mesh.traffic().total().calls, n / outer == 1 ? 0 : 1) << "counted in the complete mesh";
  EXPECT_EQ(&stage.traffic(), &mesh.traffic());
}

TEST(DeviceMesh, ExpertsSeeTheRanksOfAStageAsAMeshOfTheirOwn) {
  const int64_t n = world().size();
  for (int64_t pp = 1; pp <= std::min<int64_t>(n, 2); ++pp) {
    for (int64_t ep = 1; ep <= n / pp; ++ep) {
      if (n / pp % ep != 0) continue;
      const DeviceMesh complete(MeshLayout::fit({{"pp", pp}, {"dp", n / pp}, {"ep", ep}}, training_axes(), n), world());
      const DeviceMesh stage = complete.part({"dp", "cp", "tp"}), experts = stage.experts();
      EXPECT_EQ(stage.layout().ep(), ep);
      EXPECT_EQ(experts.size("edp") * experts.size("ep") * pp, n);
      EXPECT_EQ(experts.rank(), stage.rank());
      const Group& group = experts.group("ep");
      for (int64_t i = 0; ep > 1 && i < ep; ++i) {  // neighbours
        EXPECT_EQ(group.ranks()[static_cast<size_t>(i)],
                  stage.world().ranks()[static_cast<size_t>(stage.rank() / ep * ep + i)]);
      }
      complete.traffic().clear();
      at::Tensor sum = at::ones({1}, at::kLong);
      group.all_reduce(sum).wait();
      EXPECT_EQ(sum.item<int64_t>(), ep);
      EXPECT_EQ(complete.traffic().total("ep").calls, ep > 1 ? 1 : 0);
      EXPECT_TRUE(group.coordinate_text().ends_with(ep > 1 ? "ep=" + std::to_string(group.rank()) + ")" : ")"));
      if (pp == 1) continue;
      EXPECT_THROW(complete.experts(), std::invalid_argument);
    }
  }
}

TEST(DeviceMesh, OfTheWrongSizeIsRefused) {
  try {
    const DeviceMesh mesh(MeshLayout({{"dp", world().size() + 1}}), world());
    FAIL() << "nothing was refused";
  } catch (const InputError& error) {
    const std::string started = world().size() == 1 ? "1 was" : std::to_string(world().size()) + " were";
    EXPECT_NE(std::string(error.what()).find("ranks, but " + started + " started"), std::string::npos) << error.what();
  }
}

TEST(DeviceMesh, MayBeMadeOnTheWorldOfAnother) {
  const DeviceMesh first(MeshLayout({{"dp", world().size()}}), world());
  const DeviceMesh second(MeshLayout({{"tp", world().size()}}), first.world());
  at::Tensor tensor = at::ones({4}, at::kFloat);
  second.group("tp").all_reduce(tensor).wait();
  EXPECT_EQ(tensor[0].item<float>(), world().size());
  EXPECT_EQ(first.traffic().total().calls, 0);
  EXPECT_EQ(second.traffic().total().calls, world().size() == 1 ? 0 : 1);
}

}  // namespace
}  // namespace meshtrain
