// Communication and memory of a step of each mode, against the formulas (options.h).
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "mesh/device_mesh.h"
#include "tests/fsdp/chain.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::backward_of_step;
using testing::Chain;
using testing::Hosts;
using testing::kHosts;
using testing::kMicroBatches;
using testing::kWays;
using testing::Way;
using testing::world;
using testing::world_on;

constexpr int64_t kBytes = 8;

int64_t bytes_of(const Unit& unit) {
  int64_t bytes = 0;
  for (const FlatBuffer& buffer : unit.buffers()) bytes += buffer.numel() * kBytes;
  return bytes;
}

int64_t sum(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

void step(const Chain& chain, Fsdp& fsdp) {
  backward_of_step(chain, fsdp);
  fsdp.shards_changed();
}

class FsdpCost : public ::testing::TestWithParam<std::tuple<Way, bool, Hosts>> {};

TEST_P(FsdpCost, BytesAreThoseOfTheFormulas) {
  const auto [way, tied, hosts] = GetParam();
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"tp", 1}}), world_on(hosts));
  const Chain chain(tied);
  const FsdpOptions options = way.options(mesh.group("dp"));
  Fsdp fsdp(chain.units(), options);
  step(chain, fsdp);  // before the first step every rank has complete parameters
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

/// Bytes of a rank, and of a copy that the ranks of a host share.
struct Bytes {
  int64_t ordinary = 0, own = 0, common = 0;
  int64_t disk = 0;

  static Bytes counted() {
    const WindowMemory& windows = WindowMemory::counted();
    return {HostMemory::counted().live(), windows.own(), windows.common(), 0};
  }
};

/// Expects the memory taken between two counts.
void expect_taken(const Bytes& before, const Bytes& after, const Bytes& expected) {
  EXPECT_EQ(after.ordinary - before.ordinary, expected.ordinary);
  EXPECT_EQ(after.own - before.own, expected.own);
  EXPECT_EQ(after.common - before.common, expected.common);
}

/// Returns the largest sum of `neighbours` adjacent sizes; a tied unit always has its memory.
int64_t arena(const std::vector<int64_t>& sizes, bool tied, int64_t neighbours) {
  int64_t largest = 0;
  for (size_t i = tied; i < sizes.size(); ++i) {
    int64_t sum = tied ? sizes[0] : 0;
    for (size_t k = i; k < sizes.size() && k < i + static_cast<size_t>(neighbours); ++k) sum += sizes[k];
    largest = std::max(largest, sum);
  }
  return largest;
}

/// Returns the values of the table in unit_memory.h; rows and columns have the same order. `trained`: sizes of the
/// trained units.
Bytes expected_bytes(const Way& way, const FsdpOptions& options, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& trained, bool tied) {
  const int64_t n = options.shards.size(), p = options.shards.host_ranks();
  const bool disk = options.memory.is_on_disk(), cut = way.mode != ShardingMode::NoShard && (n > 1 || disk);
  const bool full = way.mode == ShardingMode::FullShard && cut;
  const bool common = n > 1 && (full ? p == n && !disk : p > 1);
  int64_t pages = 0;  // pages of one shard, where each unit is rounded up
  for (const int64_t size : sizes) pages += (size / n + 4095) / 4096 * 4096;
  Bytes bytes;
  if (common) {
    bytes.common += sum(sizes);
  } else if (full) {
    (disk ? bytes.disk : bytes.ordinary) += disk ? pages : sum(sizes) / n;
    (p > 1 ? bytes.own : bytes.ordinary) +=
        way.reshard_after_forward ? arena(sizes, tied, 1 + way.prefetch) : sum(sizes);
  } else {
    bytes.ordinary += sum(sizes);
  }
  const bool full_gradients = !cut || way.mode == ShardingMode::ShardOptimizer || way.accumulate_unsharded;
  int64_t& gradients = options.summed_over.host_ranks() > 1 ? bytes.own : bytes.ordinary;
  gradients += full_gradients ? sum(trained) : arena(trained, tied, 2);
  if (full_gradients) return bytes;
  if (disk)
    bytes.disk += pages;
  else
    (options.summed_over.size() > n ? gradients : bytes.ordinary) += sum(trained) / n;
  return bytes;
}

TEST_P(FsdpCost, MemoryIsThatOfTheFormulas) {
  const auto [way, tied, hosts] = GetParam();
  HostMemory& memory = HostMemory::counted();
  const FsdpOptions options = way.options(world_on(hosts));
  const Bytes before = Bytes::counted();
  const Chain chain(tied);
  Fsdp fsdp(chain.units(), options);
  const Bytes after = Bytes::counted();

  std::vector<int64_t> sizes;
  for (const Unit& unit : fsdp.units()) sizes.push_back(bytes_of(unit));
  const Bytes expected = expected_bytes(way, options, sizes, sizes, tied);
  expect_taken(before, after, expected);

  step(chain, fsdp);
  // A step without computation allocates nothing: fsdp allocates all its memory at the start.
  const int64_t held = memory.live();
  memory.restart_peak();
  fsdp.begin_step();
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < sizes.size(); ++unit) fsdp.run(unit, [] { return at::Tensor(); });
  fsdp.begin_backward(true);
  fsdp.end_backward();
  fsdp.shards_changed();
  EXPECT_EQ(memory.peak(), held);
  EXPECT_EQ(WindowMemory::counted().own(), after.own);
  EXPECT_EQ(WindowMemory::counted().common(), after.common);
}

// The file holds the shards that are not part of complete tensors, memory holds the rest; under FullShard on one rank
// too.
TEST_P(FsdpCost, ShardsOnDiskTakeNoMemory) {
  const auto [way, tied, hosts] = GetParam();
  const testing::ScratchFolder folder(world());
  FsdpOptions options = way.options(world_on(hosts));
  options.memory = ShardMemory::on_disk(folder.path());
  const Bytes before = Bytes::counted();
  const Chain chain(tied);
  const Fsdp fsdp(chain.units(), options);
  const Bytes after = Bytes::counted();

  std::vector<int64_t> sizes;
  for (const Unit& unit : fsdp.units()) sizes.push_back(bytes_of(unit));
  const Bytes expected = expected_bytes(way, options, sizes, sizes, tied);
  expect_taken(before, after, expected);
  EXPECT_EQ(options.memory.disk_bytes(), expected.disk);
}

class FsdpCostOfFrozenUnits : public ::testing::TestWithParam<std::tuple<Way, Hosts>> {};

// Units 0, 1 and 3 of five are frozen: their gradients are neither held nor communicated, and the backward does not
// gather the first two. When each rank has complete parameters, frozen ones are not gathered at all.
TEST_P(FsdpCostOfFrozenUnits, IsTheirParametersAlone) {
  const auto [way, hosts] = GetParam();
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"tp", 1}}), world_on(hosts));
  const FsdpOptions options = way.options(mesh.group("dp"));
  const Bytes before = Bytes::counted();
  const Chain chain;
  for (const size_t i : {0u, 1u, 3u}) chain.weights[i]->tensor.set_requires_grad(false);
  Fsdp fsdp(chain.units(), options);
  const Bytes after = Bytes::counted();

  std::vector<int64_t> sizes;
  for (const Unit& unit : fsdp.units()) sizes.push_back(bytes_of(unit));
  const Bytes expected = expected_bytes(way, options, sizes, {sizes[2], sizes[4]}, /*tied=*/false);
  expect_taken(before, after, expected);

  step(chain, fsdp);
  mesh.traffic().clear();
  step(chain, fsdp);
  const int64_t n = options.shards.size(), r = options.replicas.size();
  const int64_t all = sum(sizes), trained = sizes[2] + sizes[4];
  const int64_t m = way.mode == ShardingMode::ShardOptimizer || way.accumulate_unsharded ? 1 : kMicroBatches;
  int64_t sent = n == 1 ? 0 : trained;
  if (way.mode == ShardingMode::FullShard && n > 1) {
    sent = kMicroBatches * (way.reshard_after_forward ? all + sizes[2] + sizes[3] : all);
  }
  EXPECT_EQ(mesh.traffic().total("", "dp.parameters").buffer_bytes, sent);
  EXPECT_EQ(mesh.traffic().total("", "dp.gradients").buffer_bytes,
            (n == 1 ? 0 : m * trained) + (r == 1 ? 0 : trained / n));
}

INSTANTIATE_TEST_SUITE_P(All, FsdpCost,
                         ::testing::Combine(::testing::ValuesIn(kWays), ::testing::Bool(), ::testing::ValuesIn(kHosts)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + (std::get<1>(test.param) ? "Tied_" : "_") +
                                  name_of(std::get<2>(test.param));
                         });

INSTANTIATE_TEST_SUITE_P(All, FsdpCostOfFrozenUnits,
                         ::testing::Combine(::testing::ValuesIn(kWays), ::testing::ValuesIn(kHosts)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + name_of(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace meshtrain
