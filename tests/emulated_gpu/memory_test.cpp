// Memory that the plug-in releases returns to the GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "mesh/backends/nccl/nccl.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "mesh/group.h"
#include "tests/gpu/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::gpu;
using testing::world;

constexpr int64_t kLarge = 1 << 22;  // elements

size_t free_bytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

/// Expects equal free memory at the end of each repetition, except the first, which allocates what is made once.
void expect_the_same(const std::vector<size_t>& free) {
  EXPECT_EQ(*std::min_element(free.begin() + 1, free.end()), *std::max_element(free.begin() + 1, free.end()));
}

TEST(MemoryOfGpu, GraphsGiveTheirsBack) {
  const at::Tensor x = at::ones({kLarge}, gpu());
  std::vector<size_t> free;
  for (int time = 0; time < 4; ++time) {
    const auto graph = open_cuda_plugin().make_graph(gpu().index());
    at::Tensor sum;
    graph->record([&] { sum = (x + 1).sum(); });
    graph->replay();
    EXPECT_EQ(sum.item<double>(), 2.0 * kLarge);
    free.push_back(free_bytes());
  }
  expect_the_same(free);
}

Group group_with(NcclBuffers buffers) {
  const auto backend = connect_nccl(world().backend(), {.user_buffers = buffers});
  return Group(backend, "device", world().ranks(), world().coordinate_text());
}

class UserBuffers : public ::testing::TestWithParam<NcclBuffers> {};

INSTANTIATE_TEST_SUITE_P(MemoryOfGpu, UserBuffers, ::testing::Values(NcclBuffers::Registered, NcclBuffers::Symmetric));

TEST_P(UserBuffers, AreGivenBack) {
  const Group group = group_with(GetParam());
  std::vector<size_t> free;
  for (int time = 0; time < 4; ++time) {
    at::Tensor window = group.window(kLarge, at::TensorOptions(gpu()), Placement::Own);
    ASSERT_TRUE(window.defined());
    group.all_reduce(window).wait();
    free.push_back(free_bytes());
  }
  expect_the_same(free);
}

TEST_P(UserBuffers, AreThereUntilTheirWorkIsDone) {
  const Group group = group_with(GetParam());
  const at::Tensor kept = at::zeros({kLarge}, gpu());
  for (int time = 1; time < 4; ++time) {
    at::Tensor window = group.window(kLarge, kept.options(), Placement::Own);
    window.fill_(time);
    group.all_reduce(window).wait();
    kept.copy_(window);
    window.reset();
    window = group.window(1, kept.options(), Placement::Own);
    EXPECT_EQ(kept.max().item<double>(), time * world().size());
  }
}

}  // namespace
}  // namespace meshtrain
