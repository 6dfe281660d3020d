// What a step of each mode sends and holds, against the formulas (options.h).
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "mesh/device_mesh.h"
#include "mesh/memory.h"
#include "tests/fsdp/chain.h"

namespace meshtrain {
namespace {

using testing::backward_of_step;
using testing::Chain;
using testing::kMicroBatches;
using testing::kWays;
using testing::Way;
using testing::world;

constexpr int64_t kBytes = 8;

int64_t bytes_of(const Unit& unit) {
  int64_t bytes = 0;
  for (const FlatBuffer& buffer : unit.buffers()) bytes += buffer.numel() * kBytes;
  return bytes;
}

void step(const Chain& chain, Fsdp& fsdp) {
  backward_of_step(chain, fsdp);
  fsdp.shards_changed();
}

class FsdpCost : public ::testing::TestWithParam<std::tuple<Way, bool>> {};

TEST_P(FsdpCost, BytesAreThoseOfTheFormulas) {
  const auto [way, tied] = GetParam();
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"tp", 1}}), world());
  const Chain chain(tied);
  const FsdpOptions options = way.options(mesh.group("dp"));
  Fsdp fsdp(chain.units(), options);
  step(chain, fsdp);  // parameters were whole everywhere before the first
  mesh.traffic().clear();
  step(chain, fsdp);

  int64_t all = 0;
  for (const Unit& unit : fsdp.units()) all += bytes_of(unit);
  const int64_t first = bytes_of(fsdp.units().front()), last = bytes_of(fsdp.units().back());
  const int64_t n = options.shards.size(), r = options.replicas.size();
  const int64_t m = way.mode == ShardingMode::ShardOptimizer || way.accumulate_unsharded ? 1 : kMicroBatches;
  int64_t parameters = n == 1 ? 0 : all, scattered = n == 1 ? 0 : m * all;
  if (way.mode == ShardingMode::FullShard && n > 1) {
    parameters = way.reshard_after_forward ? 2 * all - last : all;
    parameters *= kMicroBatches;
    if (tied) parameters -= (way.reshard_after_forward ? 2 * kMicroBatches - 1 : kMicroBatches - 1) * first;
  }
  const Traffic sent_parameters = mesh.traffic().total("", "dp.parameters");
  EXPECT_EQ(sent_parameters.buffer_bytes, parameters);
  EXPECT_EQ(sent_parameters.sent_bytes, parameters * (n - 1) / n);
  const int64_t summed = r == 1 ? 0 : all / n;
  const Traffic gradients = mesh.traffic().total("", "dp.gradients");
  EXPECT_EQ(gradients.buffer_bytes, scattered + summed);
  EXPECT_EQ(gradients.sent_bytes, scattered * (n - 1) / n + 2 * summed * (r - 1) / r);
}

TEST_P(FsdpCost, MemoryIsThatOfTheFormulas) {
  const auto [way, tied] = GetParam();
  HostMemory& memory = HostMemory::counted();
  const Chain chain(tied);
  const FsdpOptions options = way.options(world());
  int64_t before = memory.live();
  for (const auto& weight : chain.weights) before -= weight->tensor.numel() * kBytes;  // of before they had a place
  Fsdp fsdp(chain.units(), options);

  std::vector<int64_t> sizes;
  int64_t all = 0;
  for (const Unit& unit : fsdp.units()) all += sizes.emplace_back(bytes_of(unit));
  const int64_t n = options.shards.size();
  const bool full = way.mode == ShardingMode::FullShard && n > 1;
  const bool whole_gradients = n == 1 || way.mode == ShardingMode::ShardOptimizer || way.accumulate_unsharded;
  // Of the units in a row 1 + prefetch have their parameters, and 2 their gradients; a tied one always.
  const auto most = [&](int64_t at_once) {
    int64_t largest = 0;
    for (size_t i = tied; i < sizes.size(); ++i) {
      int64_t sum = tied ? sizes[0] : 0;
      for (size_t k = i; k < sizes.size() && k < i + static_cast<size_t>(at_once); ++k) sum += sizes[k];
      largest = std::max(largest, sum);
    }
    return largest;
  };
  const int64_t gathered = way.reshard_after_forward ? most(1 + way.prefetch) : all;
  const int64_t parameters = full ? all / n + gathered : all;
  const int64_t gradients = whole_gradients ? all : all / n + most(2);
  EXPECT_EQ(memory.live() - before, parameters + gradients);

  step(chain, fsdp);
  // A step that computes nothing allocates nothing: what fsdp holds it holds from the start.
  const int64_t held = memory.live();
  memory.restart_peak();
  fsdp.begin_step();
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < sizes.size(); ++unit) fsdp.run(unit, [] { return at::Tensor(); });
  fsdp.begin_backward(true);
  fsdp.end_backward();
  fsdp.shards_changed();
  EXPECT_EQ(memory.peak(), held);
}

class FsdpCostOfFrozenUnits : public ::testing::TestWithParam<Way> {};

// Units 0, 1 and 3 of five are frozen: no gradients of them are held or sent, and in the backward the first two are not
// gathered. Where parameters are whole on each rank, those that do not change are not gathered at all.
TEST_P(FsdpCostOfFrozenUnits, IsTheirParametersAlone) {
  const Way& way = GetParam();
  HostMemory& memory = HostMemory::counted();
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"tp", 1}}), world());
  const Chain chain;
  for (const size_t i : {0u, 1u, 3u}) chain.weights[i]->tensor.set_requires_grad(false);
  const FsdpOptions options = way.options(mesh.group("dp"));
  int64_t before = memory.live();
  for (const auto& weight : chain.weights) before -= weight->tensor.numel() * kBytes;
  Fsdp fsdp(chain.units(), options);

  std::vector<int64_t> sizes;
  int64_t all = 0;
  for (const Unit& unit : fsdp.units()) all += sizes.emplace_back(bytes_of(unit));
  const int64_t n = options.shards.size(), r = options.replicas.size();
  const int64_t trained = sizes[2] + sizes[4];
  const bool full = way.mode == ShardingMode::FullShard && n > 1;
  const bool whole_gradients = n == 1 || way.mode == ShardingMode::ShardOptimizer || way.accumulate_unsharded;
  int64_t gathered = all;
  if (way.reshard_after_forward) {
    gathered = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t sum = 0;
      for (size_t k = i; k < sizes.size() && k <= i + static_cast<size_t>(way.prefetch); ++k) sum += sizes[k];
      gathered = std::max(gathered, sum);
    }
  }
  const int64_t parameters = full ? all / n + gathered : all;
  EXPECT_EQ(memory.live() - before, parameters + (whole_gradients ? trained : trained / n + trained));

  step(chain, fsdp);
  mesh.traffic().clear();
  step(chain, fsdp);
  const int64_t m = way.mode == ShardingMode::ShardOptimizer || way.accumulate_unsharded ? 1 : kMicroBatches;
  int64_t sent = n == 1 ? 0 : trained;
  if (full) sent = kMicroBatches * (way.reshard_after_forward ? all + sizes[2] + sizes[3] : all);
  EXPECT_EQ(mesh.traffic().total("", "dp.parameters").buffer_bytes, sent);
  EXPECT_EQ(mesh.traffic().total("", "dp.gradients").buffer_bytes,
            (n == 1 ? 0 : m * trained) + (r == 1 ? 0 : trained / n));
}

INSTANTIATE_TEST_SUITE_P(All, FsdpCost, ::testing::Combine(::testing::ValuesIn(kWays), ::testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + (std::get<1>(test.param) ? "Tied" : "");
                         });

INSTANTIATE_TEST_SUITE_P(All, FsdpCostOfFrozenUnits, ::testing::ValuesIn(kWays),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace meshtrain
