#include "fsdp/flat_buffer.h"

#include <gtest/gtest.h>

#include "fsdp/lent_memory.h"
#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

const at::TensorOptions kDouble = at::TensorOptions().dtype(at::kDouble);

Parameter parameter(const std::string& name, std::vector<int64_t> shape) {
  return full_parameter(name, std::move(shape), {}, kDouble);
}

/// Returns a buffer with permanent memory for all of it.
FlatBuffer settled(std::vector<Parameter*> parameters, const Sharding& sharding = {}) {
  FlatBuffer buffer(std::move(parameters), sharding);
  for (const at::Tensor& tensor : {buffer.values(), buffer.gradients()}) {
    if (tensor.defined()) lend_memory(tensor, at::zeros({tensor.numel()}, tensor.options()), 0);
  }
  buffer.settle(/*values_stay=*/true);
  return buffer;
}

TEST(FlatBuffer, LaysRegionsOutInOrderAndAligned) {
  Parameter cut = parameter("cut", {5, 3}), full = parameter("whole", {7}), partial = parameter("partial", {2});
  cut.sharded_over = "tp";
  partial.partial_over = "tp";
  const FlatBuffer buffer({&cut, &full, &partial}, {.num_shards = 3});

  ASSERT_EQ(buffer.segments().size(), 3u);
  EXPECT_EQ(buffer.segments()[0].parameter, &partial);
  EXPECT_EQ(buffer.segments()[1].parameter, &full);
  EXPECT_EQ(buffer.segments()[2].parameter, &cut);
  for (const Segment& segment : buffer.segments()) EXPECT_EQ(segment.offset * 8 % 256, 0) << segment.parameter->name;
  EXPECT_EQ(buffer.partial_numel(), 2);
  EXPECT_EQ(buffer.full_numel(), 32 + 7);
  EXPECT_EQ(buffer.numel() % (3 * 32), 0) << "padded so that three ranks get equal, aligned shares";
}

TEST(FlatBuffer, NeighboursLieTogetherAsOneMatrix) {
  Parameter q = parameter("q", {3, 5}), k = parameter("k", {2, 5});
  k.follows_previous = true;
  const FlatBuffer buffer = settled({&q, &k});
  EXPECT_EQ(buffer.segments()[1].offset, 15);
  const at::Tensor fused = q.tensor.detach().as_strided({5, 5}, {5, 1});
  k.tensor.detach().fill_(2);
  EXPECT_TRUE(fused.narrow(0, 3, 2).eq(2).all().item<bool>());
}

TEST(FlatBuffer, FrozenShardsAreNotLessThanTheirParameters) {
  const Sharding sharding{.shard_dtype = at::kFloat, .frozen_dtype = at::kBFloat16};
  for (const auto& [dtype, wanted] : {std::pair(at::kBFloat16, at::kBFloat16), std::pair(at::kFloat, at::kFloat)}) {
    Parameter frozen = full_parameter("a", {3}, {}, kDouble.dtype(dtype));
    frozen.tensor.set_requires_grad(false);
    EXPECT_EQ(settled({&frozen}, sharding).shard_values().scalar_type(), wanted) << "the parameter is " << dtype;
  }
}

TEST(FlatBuffer, WhatFollowsAFrozenOneBeginsAligned) {
  Parameter norm = parameter("norm", {7}), q = parameter("q", {3, 5}), k = parameter("k", {2, 5});
  q.sharded_over = k.sharded_over = "tp";
  k.follows_previous = true;
  q.tensor.set_requires_grad(false);
  const std::vector<FlatBuffer> buffers = make_flat_buffers({&norm, &q, &k}, {});
  ASSERT_EQ(buffers.size(), 2u);
  const FlatBuffer& trained = buffers[0].trainable() ? buffers[0] : buffers[1];
  EXPECT_EQ(trained.segments()[1].parameter, &k);
  EXPECT_EQ(trained.segments()[1].offset, 32);
}

TEST(FlatBuffer, KeepsValuesAndIdentityOfLeaves) {
  Parameter weight = parameter("weight", {4, 4});
  const at::Tensor values = testing::random_tensor({4, 4}, 1);
  weight.tensor = values.clone().requires_grad_();
  const at::Tensor same_leaf = weight.tensor;
  const FlatBuffer buffer = settled({&weight});
  EXPECT_TRUE(at::equal(buffer.values().narrow(0, 0, 16).view({4, 4}), values));
  EXPECT_EQ(same_leaf.data_ptr(), buffer.values().data_ptr());
}

TEST(FlatBuffer, GradientsArriveInPlaceAndAccumulate) {
  Parameter weight = parameter("weight", {3});
  const FlatBuffer buffer = settled({&weight});
  weight.tensor.detach().fill_(1);
  for (int i = 0; i < 2; ++i) (weight.tensor * 3).sum().backward();
  EXPECT_TRUE(buffer.gradients().narrow(0, 0, 3).eq(6).all().item<bool>());
}

TEST(FlatBuffer, MayBeRefilledBetweenForwardAndBackward) {
  Parameter weight = parameter("weight", {3});
  const FlatBuffer buffer = settled({&weight});
  weight.tensor.detach().fill_(2);
  const at::Tensor loss = weight.tensor.square().sum();
  at::Tensor(buffer.values()).fill_(5);  // as a gather does
  EXPECT_NO_THROW(loss.backward());
  EXPECT_TRUE(buffer.gradients().narrow(0, 0, 3).eq(10).all().item<bool>());
}

TEST(FlatBuffer, KindsAreKeptApart) {
  Parameter trainable = parameter("a", {3}), frozen = parameter("b", {3});
  Parameter narrow = full_parameter("c", {3}, {}, at::TensorOptions().dtype(at::kFloat));
  frozen.tensor.set_requires_grad(false);
  const std::vector<FlatBuffer> buffers = make_flat_buffers({&trainable, &frozen, &narrow}, {});
  ASSERT_EQ(buffers.size(), 3u);
  int num_trainable = 0;
  for (const FlatBuffer& buffer : buffers) num_trainable += buffer.trainable();
  EXPECT_EQ(num_trainable, 2);
}

TEST(FlatBuffer, WorksOnTheMetaDevice) {
  Parameter weight = full_parameter("weight", {1000, 1000}, {}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  const FlatBuffer buffer = settled({&weight}, {.num_shards = 8});
  EXPECT_EQ(weight.tensor.sizes(), (std::vector<int64_t>{1000, 1000}));
  EXPECT_EQ(buffer.gradients().device().type(), at::kMeta);
}

}  // namespace
}  // namespace meshtrain
