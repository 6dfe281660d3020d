#include "tensor_parallel/products/leaf_gradient.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "mesh/device/gradient_state.h"
#include "mesh/device/row_chunks.h"
#include "tensor_parallel/embedding.h"
#include "tensor_parallel/linear.h"
#include "tensor_parallel/linear_cross_entropy.h"
#include "tensor_parallel/products/matrix_product.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kLeafRows = 8;
constexpr int64_t kLeafIn = 12;

/// Returns a layer with q, k, v of 8, 4 and 4 features on one rank, with biases.
ColumnParallelLinear make_layer(at::ScalarType dtype = at::kDouble) {
  return ColumnParallelLinear({Group(), false}, kLeafIn, {{"q", 8}, {"k", 4}, {"v", 4}}, true, {},
                              at::TensorOptions().dtype(dtype));
}

at::Tensor x() {
  return random_tensor({kLeafRows, kLeafIn}, 1);
}
at::Tensor dy() {
  return random_tensor({kLeafRows, 16}, 2);
}

at::Tensor gradient_of(const std::string& name) {
  const at::Tensor full = name.ends_with("weight") ? at::mm(dy().t(), x()) : dy().sum(0);
  return name[0] == 'q' ? full.narrow(0, 0, 8) : full.narrow(0, name[0] == 'k' ? 8 : 12, 4);
}

TEST(Adjacent, IsOneAfterTheOtherInMemory) {
  const at::Tensor flat = at::zeros({40});
  const at::Tensor a = flat.narrow(0, 0, 12).view({4, 3}), b = flat.narrow(0, 12, 6).view({2, 3});
  EXPECT_TRUE(adjacent(a, b));
  EXPECT_FALSE(adjacent(b, a));
  EXPECT_FALSE(adjacent(a, flat.narrow(0, 13, 6).view({2, 3})));             // a gap
  EXPECT_FALSE(adjacent(a, flat.narrow(0, 12, 6).view({3, 2})));             // another width
  EXPECT_FALSE(adjacent(a, flat.narrow(0, 12, 9).view({3, 3}).t()));         // another order
  EXPECT_FALSE(adjacent(a, at::zeros({18}).narrow(0, 12, 6).view({2, 3})));  // another storage
}

TEST(Join, IsAViewOfAdjacentTensorsAndACopyOfOthers) {
  const at::Tensor flat = at::arange(40, at::kDouble);
  const at::Tensor a = flat.narrow(0, 4, 12).view({4, 3}), b = flat.narrow(0, 16, 6).view({2, 3});
  EXPECT_TRUE(at::equal(join({a, b}), at::cat({a, b})));
  EXPECT_EQ(join({a, b}).data_ptr(), a.data_ptr());
  EXPECT_TRUE(at::equal(join({b, a}), at::cat({b, a})));
  EXPECT_FALSE(join({b, a}).is_alias_of(flat));
  EXPECT_TRUE(join({a}).is_same(a));
  // One row: its stride has no meaning.
  const at::Tensor row = flat.as_strided({1, 3}, {7, 1}, 13);
  EXPECT_TRUE(at::equal(join({row, b}), at::cat({row, b})));
}

TEST(GradientsInPlace, GoIntoTheFlatBufferAndNowhereElse) {
  ColumnParallelLinear layer = make_layer();
  const at::Tensor flat = materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  const void* address = layer.parameters()[1]->tensor.grad().data_ptr();
  layer.forward(x()).backward(dy());
  for (const Parameter* parameter : layer.parameters()) {
    EXPECT_LT(relative_error(parameter->tensor.grad(), gradient_of(parameter->name)), 1e-12) << parameter->name;
    EXPECT_TRUE(parameter->tensor.grad().is_alias_of(flat)) << parameter->name;
  }
  EXPECT_EQ(layer.parameters()[1]->tensor.grad().data_ptr(), address);
  EXPECT_EQ(flat.narrow(0, 0, 3).abs().sum().item<double>(), 0);
}

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  CountingHook(int* count, at::Tensor* seen) : count_(count), seen_(seen) {}
  void operator()(const at::Tensor& leaf) override {
    ++*count_;
    *seen_ = leaf.grad().clone();
  }
  int* count_;
  at::Tensor* seen_;
};

TEST(GradientsInPlace, AreFinalWhenPostAccumulateHooksFire) {
  for (const Storage storage : {Storage::Loose, Storage::Flat}) {
    ColumnParallelLinear layer = make_layer();
    materialize(layer.parameters(), full_values(layer.parameters()), storage);
    std::map<std::string, int> counts;
    std::map<std::string, at::Tensor> seen;
    for (const Parameter* parameter : layer.parameters()) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameter->tensor, std::make_unique<CountingHook>(&counts[parameter->name], &seen[parameter->name]));
    }
    layer.forward(x()).backward(dy());
    for (const Parameter* parameter : layer.parameters()) {
      ASSERT_EQ(counts[parameter->name], 1) << parameter->name;
      EXPECT_LT(relative_error(seen[parameter->name], gradient_of(parameter->name)), 1e-12) << parameter->name;
    }
  }
}

TEST(GradientsInPlace, LeaveFrozenParametersAlone) {
  for (const Storage storage : {Storage::Loose, Storage::Flat}) {
    ColumnParallelLinear layer = make_layer();
    materialize(layer.parameters(), full_values(layer.parameters()), storage);
    for (Parameter* parameter : layer.parameters()) {
      if (parameter->name[0] == 'k' || parameter->name == "q.bias") {
        parameter->tensor.set_requires_grad(false);
        parameter->tensor.mutable_grad().reset();
      }
    }
    const at::Tensor input = x().requires_grad_();
    layer.forward(input).backward(dy());
    at::Tensor expected_dx = at::zeros_like(input);
    for (const Parameter* parameter : layer.parameters()) {
      const at::Tensor& gradient = parameter->tensor.grad();
      if (parameter->tensor.requires_grad()) {
        EXPECT_LT(relative_error(gradient, gradient_of(parameter->name)), 1e-12) << parameter->name;
      } else {
        EXPECT_FALSE(gradient.defined()) << parameter->name;
      }
    }
    std::vector<at::Tensor> weights;
    for (size_t i = 0; i < 3; ++i) weights.push_back(layer.parameters()[i]->tensor.detach());
    EXPECT_LT(relative_error(input.grad(), at::mm(dy(), at::cat(weights))), 1e-12);
  }
}

TEST(GradientsInPlace, ReadWeightsThatWereRefilled) {
  ColumnParallelLinear layer = make_layer();
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  const at::Tensor input = x().requires_grad_();
  const at::Tensor y = layer.forward(input);
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < 3; ++i) {
    const at::NoGradGuard no_grad;
    layer.parameters()[i]->tensor.mul_(2);
    weights.push_back(layer.parameters()[i]->tensor.detach());
  }
  y.backward(dy());
  EXPECT_LT(relative_error(input.grad(), at::mm(dy(), at::cat(weights))), 1e-12);
}

TEST(GradientsInPlace, AreReturnedToWhoeverAsksForThem) {
  ColumnParallelLinear layer = make_layer();
  const at::Tensor flat = materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  std::vector<at::Tensor> leaves;
  for (const Parameter* parameter : layer.parameters()) leaves.push_back(parameter->tensor);
  const std::vector<at::Tensor> gradients = torch::autograd::grad({layer.forward(x())}, leaves, {dy()});
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::string& name = layer.parameters()[i]->name;
    EXPECT_LT(relative_error(gradients[i], gradient_of(name)), 1e-12) << name;
  }
  EXPECT_EQ(flat.abs().sum().item<double>(), 0);
}

TEST(GradientsInPlace, AreShownToHooksOfTheLeaf) {
  ColumnParallelLinear layer = make_layer();
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  const at::Tensor& k = layer.parameters()[1]->tensor;
  k.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
  layer.forward(x()).backward(dy());
  for (const Parameter* parameter : layer.parameters()) {
    const double factor = parameter->name == "k.weight" ? 3 : 1;
    EXPECT_LT(relative_error(parameter->tensor.grad(), gradient_of(parameter->name) * factor), 1e-12)
        << parameter->name;
  }
}

TEST(GradientsInPlace, OfLoosePartsDoNotShareMemory) {
  ColumnParallelLinear layer = make_layer();
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Loose);
  layer.forward(x()).backward(dy());
  EXPECT_FALSE(layer.parameters()[0]->tensor.grad().is_alias_of(layer.parameters()[1]->tensor.grad()));
}

TEST(GradientsInPlace, RefuseASecondDerivative) {
  ColumnParallelLinear layer = make_layer();
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Loose);
  const at::Tensor input = x().requires_grad_();
  const at::Tensor y = layer.forward(input).sum();
  EXPECT_THROW(torch::autograd::grad({y}, {input}, {}, std::nullopt, /*create_graph=*/true), std::logic_error);
}

TEST(GradientsInPlace, OfHalvesAddUpInAnFp32Buffer) {
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    ColumnParallelLinear layer = make_layer(half);
    const at::Tensor flat = materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat, at::kFloat);
    constexpr int kMicroBatches = 300;  // 257 + 1 is 257 in bf16
    for (int i = 0; i < kMicroBatches; ++i)
      layer.forward(at::ones({1, kLeafIn}, half)).backward(at::ones({1, 16}, half));
    EXPECT_EQ(flat.scalar_type(), at::kFloat);
    for (const Parameter* parameter : layer.parameters()) {
      EXPECT_TRUE(parameter->tensor.grad().eq(kMicroBatches).all().item<bool>()) << parameter->name;
    }
  }
}

TEST(GradientsInPlace, OfLargeHalvesAreComputedInPieces) {
  constexpr int64_t kWide = 2048, kManyRows = 2500;
  static_assert(kWide * kManyRows * 2 > 2 * kTemporaryBytes);
  const at::Tensor weight = at::zeros({kManyRows, kWide}, at::kBFloat16).requires_grad_();
  weight.mutable_grad() = at::zeros({kManyRows, kWide}, at::kFloat);
  const at::Tensor input = random_tensor({4, kWide}, 1, at::kBFloat16);
  const at::Tensor gradient = random_tensor({4, kManyRows}, 2, at::kBFloat16);
  column_parallel_linear(input, {weight}, {}, {}).backward(gradient);
  EXPECT_LT(relative_error(weight.grad(), at::mm(gradient.to(at::kDouble).t(), input.to(at::kDouble))), 0x1p-8);
}

TEST(GradientsInPlace, OfHalvesOverManyRowsAreAsAccurateAsThePlainLayers) {
  constexpr int64_t kManyRows = 4096;
  const at::Tensor input = random_tensor({kManyRows, kLeafIn}, 1, at::kBFloat16).abs();
  const at::Tensor gradient = random_tensor({kManyRows, 16}, 2, at::kBFloat16).abs();
  ColumnParallelLinear layer = make_layer(at::kBFloat16);
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  layer.forward(input).backward(gradient);

  const at::Tensor plain_weight = at::zeros({16, kLeafIn}, at::kBFloat16).requires_grad_();
  const at::Tensor plain_bias = at::zeros({16}, at::kBFloat16).requires_grad_();
  at::linear(input, plain_weight, plain_bias).backward(gradient);
  const at::Tensor exact_weight = at::mm(gradient.to(at::kDouble).t(), input.to(at::kDouble));
  const at::Tensor exact_bias = gradient.to(at::kDouble).sum(0);
  const double weight_error = relative_error(plain_weight.grad(), exact_weight);
  const double bias_error = relative_error(plain_bias.grad(), exact_bias);
  std::vector<at::Tensor> weights, biases;
  for (const Parameter* parameter : layer.parameters()) {
    (parameter->name.ends_with("weight") ? weights : biases).push_back(parameter->tensor.grad());
  }
  EXPECT_LE(relative_error(at::cat(weights), exact_weight), 1.01 * weight_error);
  EXPECT_LE(relative_error(at::cat(biases), exact_bias), 1.01 * bias_error);
  EXPECT_LT(weight_error, 5e-3);
}

/// Makes a buffer full of NaN, of `dtype` or the leaf's own, the unwritten gradient buffer of the leaf.
void leave_unwritten(const at::Tensor& leaf, at::ScalarType dtype = at::ScalarType::Undefined) {
  if (!leaf.grad().defined()) {
    leaf.mutable_grad() =
        at::empty_like(leaf, dtype == at::ScalarType::Undefined ? leaf.scalar_type() : dtype).detach();
  }
  leaf.grad().fill_(std::numeric_limits<double>::quiet_NaN());
  GradientState::attach(leaf, [] {});
  GradientState::of(leaf)->set_written(false);
}

TEST(AddProduct, ReadsNothingOfAnUnwrittenResult) {
  const auto kinds = std::vector<std::pair<at::ScalarType, at::ScalarType>>{
      {at::kDouble, at::kDouble}, {at::kFloat, at::kFloat},    {at::kBFloat16, at::kBFloat16},
      {at::kHalf, at::kHalf},     {at::kBFloat16, at::kFloat}, {at::kHalf, at::kFloat}};
  for (const auto& [dtype, into] : kinds) {
    // Small; large enough for any library and a temporary in pieces; no tokens.
    for (const auto& [tokens, rows, columns] :
         std::vector<std::array<int64_t, 3>>{{5, 3, 7}, {1, 1, 1}, {64, 200, 96}, {8, 3000, 1024}, {0, 4, 6}}) {
      const at::Tensor a = random_tensor({tokens, rows}, 1, dtype), b = random_tensor({tokens, columns}, 2, dtype);
      const at::Tensor added = at::zeros({rows, columns}, into), written = at::full_like(added, std::nan(""));
      add_product(added, a, b);
      add_product(written, a, b, /*unwritten=*/true);
      EXPECT_TRUE(at::equal(added, written)) << dtype << " into " << into << ", " << tokens << " tokens";
      add_product(added, a, b);
      add_product(written, a, b);
      EXPECT_TRUE(at::equal(added, written)) << dtype << " into " << into << ", " << tokens << " tokens";
    }
  }
}

TEST(UnwrittenGradients, AreWrittenByTheFirstBackwardAndAddedToByTheNext) {
  for (const bool joined : {true, false}) {
    for (const auto& [dtype, buffers] : {std::pair{at::kDouble, at::kDouble}, std::pair{at::kBFloat16, at::kFloat}}) {
      // Products and sums of fewer columns at a time may have another order.
      const double tolerance = joined ? 0 : dtype == at::kDouble ? 1e-12 : 0x1p-8;
      ColumnParallelLinear layer = make_layer(dtype), wanted = make_layer(dtype);
      materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat, buffers);
      materialize(wanted.parameters(), full_values(wanted.parameters()), Storage::Flat, buffers);
      for (const Parameter* parameter : layer.parameters()) {
        EXPECT_TRUE(parameter->written_by_layer) << parameter->name;
        if (joined || parameter->name[0] != 'k') leave_unwritten(parameter->tensor);
      }
      for (ColumnParallelLinear* one : {&layer, &wanted}) {  // k is already written, its neighbours are not
        for (const Parameter* parameter : one->parameters()) {
          if (!joined && parameter->name[0] == 'k') parameter->tensor.grad().fill_(1);
        }
      }
      for (int i = 0; i < 3; ++i) {
        layer.forward(x().to(dtype)).backward(dy().to(dtype));
        wanted.forward(x().to(dtype)).backward(dy().to(dtype));
        for (size_t j = 0; j < 6; ++j) {
          const at::Tensor &seen = layer.parameters()[j]->tensor.grad(), &own = wanted.parameters()[j]->tensor.grad();
          EXPECT_LE(relative_error(seen, own), tolerance) << layer.parameters()[j]->name << " after backward " << i;
        }
      }
    }
  }
}

TEST(UnwrittenGradients, AreZeroWhereHooksHaveAutogradAddToThem) {
  ColumnParallelLinear layer = make_layer();
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  for (const Parameter* parameter : layer.parameters()) leave_unwritten(parameter->tensor);
  layer.parameters()[1]->tensor.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
  layer.forward(x()).backward(dy());
  for (const Parameter* parameter : layer.parameters()) {
    const double factor = parameter->name == "k.weight" ? 3 : 1;
    EXPECT_LT(relative_error(parameter->tensor.grad(), gradient_of(parameter->name) * factor), 1e-12)
        << parameter->name;
  }
}

TEST(UnwrittenGradients, StaySoWhereGradientsAreReturned) {
  ColumnParallelLinear layer = make_layer();
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  std::vector<at::Tensor> leaves;
  for (const Parameter* parameter : layer.parameters()) {
    leaves.push_back(parameter->tensor);
    leave_unwritten(parameter->tensor);
  }
  const std::vector<at::Tensor> gradients = torch::autograd::grad({layer.forward(x())}, leaves, {dy()});
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_LT(relative_error(gradients[i], gradient_of(layer.parameters()[i]->name)), 1e-12);
    EXPECT_FALSE(GradientState::of(leaves[i])->written()) << layer.parameters()[i]->name;
  }
}

/// Returns the gradient of a table that is also the head, after two backwards. `unwritten`: they add to a buffer of
/// NaN, otherwise to zeros. Five ids leave fewer, or none, for the last of several ranks.
at::Tensor tied_gradient(bool unwritten, bool uses_head, int64_t tokens_at_once) {
  const TensorParallel tp = tensor_parallel(false);
  VocabParallelEmbedding embedding(tp, "embed", 5, kLeafIn, {}, at::kDouble);
  const Parameter& weight = embedding.weight();
  materialize(embedding.parameters(), full_values(embedding.parameters()), Storage::Flat);
  if (unwritten) leave_unwritten(weight.tensor);
  const at::Tensor ids = at::arange(kLeafRows, at::kLong).remainder(5);
  for (int i = 0; i < 2; ++i) {
    const at::Tensor y = embedding.forward(ids) * x();
    (uses_head ? linear_cross_entropy(y, weight, ids, -100, tp, tokens_at_once) : y.sum()).backward();
  }
  return weight.tensor.grad();
}

TEST(UnwrittenGradients, OfATableAreWrittenByTheHeadOrZeroForTheEmbedding) {
  for (const int64_t tokens_at_once : {3, 100}) {
    EXPECT_TRUE(at::equal(tied_gradient(true, true, tokens_at_once), tied_gradient(false, true, tokens_at_once)));
  }
  EXPECT_TRUE(at::equal(tied_gradient(true, false, 1), tied_gradient(false, false, 1)));
}

}  // namespace
}  // namespace meshtrain::testing
