#include "mesh/parameter.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/parameter_index.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

const at::TensorOptions kDouble = at::TensorOptions(at::kDouble);

Group tensor_group(int rank, int size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) ranks[static_cast<size_t>(i)] = i;
  return Group(dry_run_backend(rank, size), "tp", ranks, "rank " + std::to_string(rank));
}

TEST(Parameter, WholeOnEveryRank) {
  const Parameter norm = full_parameter("norm.weight", {6}, {Initializer::Kind::Ones}, kDouble);
  EXPECT_EQ(norm.name, "norm.weight");
  EXPECT_EQ(norm.shape, (std::vector<int64_t>{6}));
  EXPECT_EQ(norm.global_shape, norm.shape);
  EXPECT_EQ(norm.box, (Box{{0}, {6}}));
  EXPECT_EQ(norm.initializer.kind, Initializer::Kind::Ones);
  EXPECT_TRUE(norm.sharded_over.empty());
  EXPECT_EQ(norm.tensor.numel(), 0);
  EXPECT_TRUE(norm.tensor.requires_grad());
  EXPECT_TRUE(norm.tensor.is_leaf());
  EXPECT_EQ(norm.tensor.scalar_type(), at::kDouble);
}

TEST(Parameter, ShardsCoverTheTensorOnceAndTheLastOnesArePadded) {
  for (const int64_t extent : {1, 7, 8, 10, 64}) {
    for (const int size : {1, 2, 3, 4, 8}) {
      int64_t covered = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Parameter shard = sharded_parameter("w", {5, extent}, 1, tensor_group(rank, size), {}, kDouble);
        EXPECT_EQ(shard.shape, (std::vector<int64_t>{5, (extent + size - 1) / size}));
        EXPECT_EQ(shard.global_shape, (std::vector<int64_t>{5, extent}));
        EXPECT_EQ(shard.box.start, (std::vector<int64_t>{0, covered}));
        EXPECT_LE(shard.box.size[1], shard.shape[1]);
        EXPECT_EQ(shard.sharded_over, size == 1 ? "" : "tp");
        covered += shard.box.size[1];
      }
      EXPECT_EQ(covered, extent) << "extent " << extent << " over " << size;
    }
  }
}

TEST(Parameter, ValidLeavesThePaddingOut) {
  Parameter last = sharded_parameter("w", {3, 10}, 1, tensor_group(3, 4), {}, kDouble);
  bind(last, at::arange(9, kDouble), 0);
  EXPECT_EQ(last.tensor.sizes(), (at::IntArrayRef{3, 3}));
  EXPECT_TRUE(at::equal(last.valid(), at::tensor({0., 3., 6.}, kDouble).view({3, 1})));
  EXPECT_TRUE(last.valid().is_alias_of(last.tensor));

  Parameter beyond = sharded_parameter("w", {9, 2}, 0, tensor_group(7, 8), {}, kDouble);
  bind(beyond, at::zeros({4}, kDouble), 0);
  EXPECT_EQ(beyond.box.numel(), 0);
  EXPECT_EQ(beyond.valid().numel(), 0);

  Parameter full = full_parameter("n", {4}, {}, kDouble);
  bind(full, at::zeros({4}, kDouble), 0);
  EXPECT_EQ(full.valid().numel(), 4);
}

TEST(Parameter, CutAlongADimThatIsNotThereIsRefused) {
  EXPECT_THROW(sharded_parameter("w", {4}, 1, tensor_group(0, 2), {}, kDouble), std::invalid_argument);
  EXPECT_THROW(sharded_parameter("w", {4}, -1, tensor_group(0, 2), {}, kDouble), std::invalid_argument);
}

TEST(Bind, MakesTheLeafAViewAndKeepsItsIdentity) {
  Parameter parameter = full_parameter("w", {2, 3}, {}, kDouble);
  const at::TensorImpl* leaf = parameter.tensor.unsafeGetTensorImpl();
  const at::Tensor storage = at::arange(20, kDouble);
  const at::Tensor flat = storage.narrow(0, 5, 12);
  bind(parameter, flat, 4);
  EXPECT_EQ(parameter.tensor.unsafeGetTensorImpl(), leaf);
  EXPECT_TRUE(parameter.tensor.is_leaf());
  EXPECT_TRUE(parameter.tensor.requires_grad());
  EXPECT_TRUE(parameter.tensor.is_contiguous());
  EXPECT_TRUE(at::equal(parameter.tensor, at::arange(9, 15, kDouble).view({2, 3})));
  flat.fill_(7);
  EXPECT_TRUE(at::equal(parameter.tensor, at::full({2, 3}, 7., kDouble)));
}

TEST(Bind, TheBufferMayBeRefilledBetweenForwardAndBackward) {
  Parameter parameter = full_parameter("w", {3}, {}, kDouble);
  at::Tensor flat = at::tensor({1., 2., 3.}, kDouble);
  bind(parameter, flat, 0);
  const at::Tensor x = at::tensor({4., 5., 6.}, kDouble).set_requires_grad(true);
  const at::Tensor loss = (parameter.tensor * x).sum();
  {
    const at::NoGradGuard no_grad;
    flat.copy_(at::tensor({10., 20., 30.}, kDouble));
  }
  loss.backward();  // with flat's version counter autograd would report a modification in place
  EXPECT_TRUE(at::equal(x.grad(), at::tensor({10., 20., 30.}, kDouble)));
  EXPECT_TRUE(at::equal(parameter.tensor.grad(), at::tensor({4., 5., 6.}, kDouble)));
}

TEST(Bind, KeepsValuesOnMoving) {
  Parameter parameter = full_parameter("w", {2, 2}, {}, kDouble);
  const at::Tensor first = at::arange(4, kDouble);
  bind(parameter, first, 0);
  const at::Tensor second = at::full({9}, -1., kDouble);
  bind(parameter, second, 3);
  EXPECT_TRUE(at::equal(second, at::tensor({-1., -1., -1., 0., 1., 2., 3., -1., -1.}, kDouble)));
  EXPECT_TRUE(parameter.tensor.is_alias_of(second));
  bind(parameter, second, 3);
  EXPECT_TRUE(at::equal(parameter.tensor, at::arange(4, kDouble).view({2, 2})));
}

TEST(Bind, WorksOnTheMetaDevice) {
  const at::TensorOptions meta = kDouble.device(at::kMeta);
  Parameter parameter = full_parameter("w", {2, 3}, {}, meta);
  bind(parameter, at::empty({10}, meta), 4);
  EXPECT_EQ(parameter.tensor.sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(parameter.tensor.storage_offset(), 4);
  bind(parameter, at::empty({10}, meta), 2);
  EXPECT_EQ(parameter.tensor.storage_offset(), 2);
}

TEST(Bind, RefusesABufferThatDoesNotFit) {
  Parameter parameter = full_parameter("layer.w", {2, 3}, {}, kDouble);
  EXPECT_THROW(bind(parameter, at::zeros({9}, kDouble), 4), std::invalid_argument);
  EXPECT_THROW(bind(parameter, at::zeros({9}, kDouble), -1), std::invalid_argument);
  EXPECT_THROW(bind(parameter, at::zeros({9}, at::kFloat), 0), std::invalid_argument);
  EXPECT_THROW(bind(parameter, at::zeros({3, 3}, kDouble), 0), std::invalid_argument);
  EXPECT_THROW(bind(parameter, at::zeros({18}, kDouble).slice(0, 0, 18, 2), 0), std::invalid_argument);
  EXPECT_THROW(bind(parameter, at::zeros({9}, kDouble.device(at::kMeta)), 0), std::invalid_argument);
  try {
    bind(parameter, at::zeros({9}, kDouble), 4);
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("layer.w of 6 elements cannot be bound to element 4"), std::string::npos);
  }
}

TEST(ParameterIndex, NumbersWhatIsDeclared) {
  Parameter first = full_parameter("a", {2, 3}, {}, kDouble);
  Parameter second = sharded_parameter("b", {5, 4}, 0, tensor_group(1, 2), {}, kDouble.dtype(at::kFloat));
  second.tensor.set_requires_grad(false);
  const ParameterIndex index({&first, &second});
  ASSERT_EQ(index.size(), 2u);
  EXPECT_EQ(index.number("a"), 0u);
  EXPECT_EQ(index.number("b"), 1u);
  EXPECT_TRUE(index[0].trainable);
  EXPECT_FALSE(index[1].trainable);
  EXPECT_EQ(index[1].global_shape, (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(index[1].dtype, at::kFloat);
  EXPECT_THROW(index.number("c"), std::out_of_range);
  EXPECT_THROW(ParameterIndex({&first, &second, &first}), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
