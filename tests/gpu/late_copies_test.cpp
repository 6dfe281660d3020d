// Copies between host and GPU that are still under way when a step is left or made again.
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <vector>

#include "fsdp/fsdp.h"
#include "mesh/device/aten.h"
#include "runtime/training/optimizer/state_pager.h"
#include "runtime/training/transformer/activation_offload.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kRows = 64;

// Other tensors get the memory at once.
TEST(LateCopies, OfABackwardThatThrewDoNotOverwriteMemory) {
  if (!gpu().is_cuda()) GTEST_SKIP() << "activations are in host memory anyway";
  constexpr int64_t kBlocks = 4;
  const at::TensorOptions options(gpu());
  const at::Tensor input = at::ones({kRows, kRows}, options).set_requires_grad(true), weight = at::ones_like(input);
  const auto fail = [&](ActivationOffload& offload) {
    offload.begin_forward();
    at::Tensor x = input;
    for (int64_t block = 0; block < kBlocks; ++block) {
      x = offload.compute({}, [&] { return x * weight * x; });
      offload.end_block(x);
      if (block == 2) x.register_hook([](const at::Tensor&) { throw std::runtime_error("no more"); });
    }
    x.sum().backward();
  };
  for (int time = 0; time < 20; ++time) {
    ActivationOffload offload(gpu(), kBlocks);
    EXPECT_THROW(fail(offload), std::runtime_error);
    std::vector<at::Tensor> others;
    for (int64_t i = 0; i < 4 * kBlocks; ++i) others.push_back(at::full({kRows, kRows}, 7, options));
    wait_for_gpu();
    for (const at::Tensor& other : others) ASSERT_TRUE(other.eq(7).all().item<bool>()) << time;
  }
}

TEST(LateCopies, OfAnUpdateThatThrewDoNotOverwriteMemory) {
  if (!gpu().is_cuda()) GTEST_SKIP() << "state is in host memory anyway";
  const at::TensorOptions options(gpu());
  for (int time = 0; time < 20; ++time) {
    const ShardMemory memory = ShardMemory::on_host();
    std::vector<StatePager::State> parts;
    for (int part = 0; part < 2; ++part) parts.push_back({memory.zeros(kRows * kRows, options)});
    const auto fail = [&] {
      StatePager pager(parts, gpu(), memory, /*cuts=*/false);
      pager.begin();
      pager.update_next([](size_t, Range, const StatePager::State&) { throw std::runtime_error("no more"); });
    };
    EXPECT_THROW(fail(), std::runtime_error);
    std::vector<at::Tensor> others;
    for (int i = 0; i < 6; ++i) others.push_back(at::full({kRows, kRows}, 7, options));
    wait_for_gpu();
    for (const at::Tensor& other : others) ASSERT_TRUE(other.eq(7).all().item<bool>()) << time;
  }
}

// Both of the buffers through which gradients go to disk are for one shard then.
TEST(LateCopies, OfGradientsThatWereComputedAgainAreWrittenInOrder) {
  Parameter parameter = full_parameter("w", {kRows}, {}, at::TensorOptions(gpu()));
  parameter.tensor.set_requires_grad(true);
  FsdpOptions options;
  options.mode = ShardingMode::FullShard;
  options.memory = ShardMemory::on_disk(std::filesystem::temp_directory_path());
  Fsdp fsdp({{"unit", {&parameter}}}, options);
  fsdp.write_values([](const Parameter& each) { each.tensor.fill_(1); });
  for (double factor = 1; factor <= 5; ++factor) {
    fsdp.begin_step();
    const at::Tensor loss = fsdp.run(0, [&] { return (parameter.tensor * factor).sum(); });
    fsdp.begin_backward(/*last=*/true);
    loss.backward();
    fsdp.end_backward();
    if (factor < 3) continue;
    fsdp.visit_gradients([&](const Parameter& each) { EXPECT_TRUE(each.tensor.eq(factor).all().item<bool>()); });
  }
}

}  // namespace
}  // namespace meshtrain::testing
