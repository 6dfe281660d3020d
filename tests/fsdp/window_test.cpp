// Parameters and gradients in memory that the ranks of a host share: offsets are right, nobody writes data that a peer
// still reads, and results equal those without windows.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "mesh/device/aten.h"
#include "mesh/skipped_sums.h"
#include "tests/fsdp/chain.h"
#include "tests/support/commands.h"
#include "tests/support/files.h"

namespace meshtrain {
namespace {

using testing::backward_of_step;
using testing::Chain;
using testing::Hosts;
using testing::input_of;
using testing::kMicroBatches;
using testing::kWays;
using testing::Way;
using testing::world;
using testing::world_on;

class FsdpWindows : public ::testing::TestWithParam<Way> {};

/// Each rank writes to its shard, and reads there the data of its peers.
TEST_P(FsdpWindows, ShardsAreSlicesOfOneCopy) {
  const Way& way = GetParam();
  const FsdpOptions options = way.options(world());
  const int n = options.shards.size();
  if (way.mode == ShardingMode::NoShard || n == 1) GTEST_SKIP() << "each rank keeps parameters of its own";
  if (options.shards.host_ranks() < n) GTEST_SKIP() << "needs one host with windows";
  const Chain chain;
  Fsdp fsdp(chain.units(), options);
  EXPECT_EQ(fsdp.memory().parameters.placement(), Placement::Common);
  EXPECT_EQ(fsdp.memory().gradients.placement(), Placement::Own);
  std::vector<const void*> addresses;
  for (const Unit& unit : fsdp.units()) {
    const FlatBuffer& buffer = unit.buffers()[0];
    addresses.push_back(buffer.values().data_ptr());
    EXPECT_EQ(buffer.shard_values().data_ptr(), buffer.values_of_shard().data_ptr());
    at::Tensor(buffer.shard_values()).fill_(1.0 + options.shards.rank());
  }
  options.shards.barrier();
  for (const Unit& unit : fsdp.units()) {
    const at::Tensor shards = unit.buffers()[0].values().view({n, -1});
    for (int rank = 0; rank < n; ++rank) EXPECT_TRUE(shards[rank].eq(1.0 + rank).all().item<bool>());
  }
  options.shards.barrier();
  fsdp.write_values([](const Parameter& parameter) { parameter.tensor.fill_(0.01); });
  for (int step = 0; step < 2; ++step) {
    backward_of_step(chain, fsdp);
    fsdp.shards_changed();
  }
  for (size_t unit = 0; unit < addresses.size(); ++unit) {
    EXPECT_EQ(fsdp.units()[unit].buffers()[0].values().data_ptr(), addresses[unit]);
  }
}

/// Returns the gradients of a step whose first rank is late in its backward while the others change their shards as
/// early as allowed. `late_unit`: rank 0 sleeps before its backward.
std::vector<at::Tensor> gradients_of_late_step(const Way& way, const Group& group, size_t late_unit) {
  const Chain chain;
  Fsdp fsdp(chain.units(), way.options(group));
  std::vector<at::Tensor> own;
  const auto late = [&](size_t unit, const auto& forward) {
    const at::Tensor y = fsdp.run(unit, forward);
    if (unit == late_unit && group.rank() == 0) {
      y.register_hook([](const at::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
    }
    return y;
  };
  fsdp.begin_step();
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    const at::Tensor loss = chain.loss(input_of(group.rank(), i), late);
    const bool last = i + 1 == kMicroBatches;
    fsdp.begin_backward(last);
    loss.backward();
    fsdp.end_backward();
  }
  {
    const at::NoGradGuard no_grad;
    for (const Unit& unit : fsdp.units()) {
      for (const FlatBuffer& buffer : unit.buffers()) {
        own.push_back(buffer.shard_gradients().clone());
        at::Tensor(buffer.shard_values()).fill_(1000);
      }
    }
  }
  fsdp.shards_changed();
  group.barrier();
  return own;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool all = a.size() == b.size();
  for (size_t i = 0; i < a.size() && all; ++i) all = at::equal(a[i], b[i]);
  return all;
}

bool on_any_rank(bool mine) {
  at::Tensor vote = at::full({1}, mine ? 1 : 0, at::kLong);
  world().all_reduce(vote, Reduce::Max).wait();
  return vote.item<int64_t>() > 0;
}

TEST_P(FsdpWindows, ShardsAreNotChangedUnderAPeerThatIsLate) {
  const Way& way = GetParam();
  const std::vector<at::Tensor> expected = gradients_of_late_step(way, world_on(Hosts::Refused), 0);
  for (const Hosts hosts : {Hosts::Found, Hosts::Two, Hosts::InTurn, Hosts::Unequal}) {
    for (const size_t unit : {0u, 2u}) {
      const std::vector<at::Tensor> found = gradients_of_late_step(way, world_on(hosts), unit);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_LT(testing::relative_error(found[i], expected[i]), 1e-12) << name_of(hosts) << ", late in " << unit;
      }
    }
  }
}

/// Shows that the test above works: without the reductions, for which an owner waits, shards change too early.
TEST(FsdpOrder, IsThatOfTheReductions) {
  if (world().size() == 1 || world().host_ranks() < world().size()) GTEST_SKIP() << "needs one host with windows";
  const Way way{"FullShard", ShardingMode::FullShard};
  const Group unordered = skip_sums(world(), "dp.gradients");
  const Group apart = skip_sums(world_on(Hosts::Refused), "dp.gradients");
  const std::vector<at::Tensor> right = gradients_of_late_step(way, apart, 1);
  const std::vector<at::Tensor> found = gradients_of_late_step(way, unordered, 1);
  EXPECT_TRUE(on_any_rank(!equal(found, right)));
}

/// On one host windows change no bit, and all runs are equal.
TEST_P(FsdpWindows, ChangeNoBit) {
  if (world().host_ranks() < world().size()) GTEST_SKIP() << "needs one host with windows";
  const Way& way = GetParam();
  std::vector<std::vector<at::Tensor>> runs;
  for (const Hosts hosts : {Hosts::Refused, Hosts::Found, Hosts::Found}) {
    const Chain chain;
    Fsdp fsdp(chain.units(), way.options(world_on(hosts)));
    std::vector<at::Tensor>& own = runs.emplace_back();
    for (int step = 0; step < 3; ++step) {
      backward_of_step(chain, fsdp);
      const at::NoGradGuard no_grad;
      for (const Unit& unit : fsdp.units()) {
        for (const FlatBuffer& buffer : unit.buffers()) {
          at::Tensor(buffer.shard_values()).sub_(buffer.shard_gradients(), 0.01);
          own.push_back(buffer.shard_values().clone());
        }
      }
      fsdp.shards_changed();
    }
  }
  EXPECT_TRUE(equal(runs[0], runs[1]));
  EXPECT_TRUE(equal(runs[1], runs[2]));
}

INSTANTIATE_TEST_SUITE_P(All, FsdpWindows, ::testing::ValuesIn(kWays),
                         [](const auto& test) { return test.param.name; });

/// Over TCP, between two network namespaces.
TEST(FsdpTwoHosts, PassTheSameTests) {
  if (world().size() > 1) GTEST_SKIP() << "starts an mpirun of its own";
  const testing::Outcome outcome =
      testing::run("timeout 300 '" + testing::source_folder() + "/tests/support/two_hosts' " + testing::this_program() +
                   " --gtest_filter='All/FsdpWays.*hosts_as_found:All/FsdpCost.*hosts_as_found'");
  if (outcome.status == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("[  PASSED  ]"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace meshtrain
