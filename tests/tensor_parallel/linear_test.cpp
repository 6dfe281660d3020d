#include "tensor_parallel/linear.h"

#include <gtest/gtest.h>

#include <memory>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kTokens = 12;
constexpr int64_t kIn = 16;
constexpr int64_t kOut = 20;

struct Case {
  bool sequence_parallel;
  bool bias;
  Storage storage;
  at::ScalarType dtype;
};

class LinearTest : public ::testing::TestWithParam<std::tuple<bool, bool, Storage, at::ScalarType>> {
 protected:
  Case parameters() const {
    const auto& [sequence_parallel, bias, storage, dtype] = GetParam();
    return {sequence_parallel, bias, storage, dtype};
  }
  double tolerance() const { return parameters().dtype == at::kDouble ? 1e-12 : 1e-5; }
};

INSTANTIATE_TEST_SUITE_P(Layers, LinearTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(Storage::Loose, Storage::Flat),
                                            ::testing::Values(at::kDouble, at::kFloat)));

at::TensorOptions of(at::ScalarType dtype) {
  return at::TensorOptions().dtype(dtype);
}

/// Computes the plain layers: outputs and, after a backward with the given gradients, the leaves' gradients.
at::Tensor plain_linear(const at::Tensor& x, const std::map<std::string, at::Tensor>& values, const std::string& name) {
  const auto bias = values.find(name + ".bias");
  const at::Tensor y = at::matmul(x, values.at(name + ".weight").t());
  return bias == values.end() ? y : y + bias->second;
}

TEST_P(LinearTest, ColumnParallelIsThePlainLayer) {
  const Case c = parameters();
  const TensorParallel tp = tensor_parallel(c.sequence_parallel);
  const std::vector<ColumnParallelLinear::Output> outputs = {{"q", 16}, {"k", 8}, {"v", 4}};
  ColumnParallelLinear layer(tp, kIn, outputs, c.bias, {Initializer::Kind::Normal, 1}, of(c.dtype));
  const auto values = full_values(layer.parameters());
  materialize(layer.parameters(), values, c.storage);

  // Two micro-batches: gradients are summed.
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor full_x = random_tensor({kTokens, kIn}, 1 + micro_batch).requires_grad_();
    std::vector<at::Tensor> own_y, own_dy, full_y, full_dy;
    for (const auto& [name, features, adapter] : outputs) {
      full_y.push_back(plain_linear(full_x, values, name));
      full_dy.push_back(random_tensor({kTokens, features}, static_cast<uint64_t>(10 * micro_batch + features)));
      own_y.push_back(own_part(full_y.back(), 1));
      own_dy.push_back(own_part(full_dy.back(), 1));
    }
    at::cat(full_y, 1).backward(at::cat(full_dy, 1));

    const at::Tensor x = own_rows(full_x, tp).to(c.dtype).requires_grad_();
    const at::Tensor y = layer.forward(x);
    EXPECT_LT(relative_error(y, at::cat(own_y, 1)), tolerance());
    y.backward(at::cat(own_dy, 1).to(c.dtype));
    EXPECT_LT(relative_error(x.grad(), own_rows(full_x.grad(), tp)), tolerance());
  }
  for (const Parameter* parameter : layer.parameters()) {
    const at::Tensor expected = own_box(*parameter, values.at(parameter->name).grad());
    EXPECT_LT(relative_error(parameter->tensor.grad(), expected), tolerance()) << parameter->name;
  }
}

TEST_P(LinearTest, RowParallelIsThePlainLayer) {
  const Case c = parameters();
  const TensorParallel tp = tensor_parallel(c.sequence_parallel);
  RowParallelLinear layer(tp, "down", kIn, kOut, c.bias, {Initializer::Kind::Normal, 1}, of(c.dtype));
  const auto values = full_values(layer.parameters());
  materialize(layer.parameters(), values, c.storage);

  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor full_x = random_tensor({kTokens, kIn}, 1 + micro_batch).requires_grad_();
    const at::Tensor full_dy = random_tensor({kTokens, kOut}, 3 + micro_batch);
    const at::Tensor full_y = plain_linear(full_x, values, "down");
    full_y.backward(full_dy);

    const at::Tensor x = own_part(full_x, 1).to(c.dtype).requires_grad_();
    const at::Tensor y = layer.forward(x);
    EXPECT_LT(relative_error(y, own_rows(full_y, tp)), tolerance());
    y.backward(own_rows(full_dy, tp).to(c.dtype));
    EXPECT_LT(relative_error(x.grad(), own_part(full_x.grad(), 1)), tolerance());
  }
  for (const Parameter* parameter : layer.parameters()) {
    at::Tensor gradient = parameter->tensor.grad().clone();
    if (!parameter->partial_over.empty()) tp.group.all_reduce(gradient).wait();
    const at::Tensor expected = own_box(*parameter, values.at(parameter->name).grad());
    EXPECT_LT(relative_error(gradient, expected), tolerance()) << parameter->name;
  }
}

TEST(LinearLayers, DeclareTheirParameters) {
  const DeviceMesh mesh = imagined_mesh(1, 4);
  const TensorParallel tp{mesh.group("tp"), true};
  ColumnParallelLinear column(tp, 6, {{"q", 8}, {"k", 4}}, true, {Initializer::Kind::Normal, 0.02}, of(at::kFloat));
  const std::vector<Parameter*> cut = column.parameters();
  const std::vector<std::string> names = {"q.weight", "k.weight", "q.bias", "k.bias"};
  ASSERT_EQ(cut.size(), names.size());
  for (size_t i = 0; i < cut.size(); ++i) {
    EXPECT_EQ(cut[i]->name, names[i]);
    EXPECT_EQ(cut[i]->sharded_over, "tp");
    EXPECT_EQ(cut[i]->partial_over, "");
    EXPECT_EQ(cut[i]->follows_previous, i % 2 == 1);
    EXPECT_EQ(cut[i]->initializer.kind, i < 2 ? Initializer::Kind::Normal : Initializer::Kind::Zeros);
    EXPECT_TRUE(cut[i]->tensor.requires_grad());
  }
  EXPECT_EQ(cut[1]->shape, (std::vector<int64_t>{1, 6}));
  EXPECT_EQ(cut[2]->box, (Box{{2}, {2}}));

  RowParallelLinear row(tp, "o", 8, 6, true, {Initializer::Kind::Normal, 0.02}, of(at::kFloat));
  const std::vector<Parameter*> down = row.parameters();
  ASSERT_EQ(down.size(), 2U);
  EXPECT_EQ(down[0]->name, "o.weight");
  EXPECT_EQ(down[0]->box, (Box{{0, 2}, {6, 2}}));
  EXPECT_EQ(down[1]->name, "o.bias");
  EXPECT_EQ(down[1]->sharded_over, "");
  EXPECT_EQ(down[1]->partial_over, "tp");
  EXPECT_EQ(down[1]->shape, (std::vector<int64_t>{6}));

  RowParallelLinear full_stream({tp.group, false}, "o", 8, 6, true, {}, of(at::kFloat));
  EXPECT_EQ(full_stream.parameters()[1]->partial_over, "");
  RowParallelLinear alone({Group(), true}, "o", 8, 6, true, {}, of(at::kFloat));
  EXPECT_EQ(alone.parameters()[1]->partial_over, "");
  EXPECT_EQ(column.parameters().size(), 4U);
  EXPECT_EQ(ColumnParallelLinear(tp, 6, {{"q", 8}}, false, {}, of(at::kFloat)).parameters().size(), 1U);
  EXPECT_EQ(RowParallelLinear(tp, "o", 8, 6, false, {}, of(at::kFloat)).parameters().size(), 1U);
}

template <class Declare>
std::string refusal(Declare declare) {
  try {
    declare();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LinearLayers, RefuseFeaturesThatTpDoesNotDivide) {
  const DeviceMesh mesh = imagined_mesh(0, 4);
  const TensorParallel tp{mesh.group("tp"), false};
  EXPECT_EQ(refusal([&] {
              ColumnParallelLinear(tp, 6, {{"layers.0.q_proj", 8}, {"layers.0.k_proj", 6}}, false, {}, of(at::kFloat));
            }),
            "layers.0.k_proj has 6 output features, which tp=4 does not divide: choose a tp that does");
  EXPECT_EQ(refusal([&] { RowParallelLinear(tp, "layers.0.down_proj", 10, 8, false, {}, of(at::kFloat)); }),
            "layers.0.down_proj has 10 input features, which tp=4 does not divide: choose a tp that does");
}

TEST(LinearLayers, OverOneRankAreThePlainProduct) {
  const TensorParallel alone{Group(), true};
  ColumnParallelLinear column(alone, kIn, {{"up", kOut}}, true, {}, of(at::kFloat));
  RowParallelLinear row(alone, "down", kIn, kOut, true, {}, of(at::kFloat));
  const at::Tensor x = random_tensor({kTokens, kIn}, 1, at::kFloat);
  for (const bool is_column : {true, false}) {
    const std::vector<Parameter*> leaves = is_column ? column.parameters() : row.parameters();
    for (Parameter* leaf : leaves) leaf->tensor = random_tensor(leaf->shape, 2, at::kFloat).requires_grad_();
    const at::Tensor expected = at::addmm(leaves[1]->tensor, x, leaves[0]->tensor.t());
    EXPECT_TRUE(at::equal(is_column ? column.forward(x) : row.forward(x), expected));
  }
}

/// Returns x, and a LayerInput that recomputes it from its half.
std::pair<at::Tensor, LayerInput> doubled(const at::Tensor& half, int* count) {
  const at::Tensor x = half * 2;
  return {x, LayerInput(x, {half}, [count](const std::vector<at::Tensor>& kept) {
            ++*count;
            const at::NoGradGuard no_grad;
            return kept[0] * 2;
          })};
}

TEST(LinearLayers, ComputeTheirInputAgainWhereAWeightNeedsIt) {
  for (const bool sequence_parallel : {false, true}) {
    const TensorParallel tp = tensor_parallel(sequence_parallel);
    ColumnParallelLinear column(tp, kIn, {{"up", 2 * kOut}}, true, {}, of(at::kDouble));
    RowParallelLinear row(tp, "down", kIn, kOut, true, {}, of(at::kDouble));
    for (const bool is_column : {true, false}) {
      const std::vector<Parameter*> leaves = is_column ? column.parameters() : row.parameters();
      materialize(leaves, full_values(leaves), Storage::Loose);
      const at::Tensor full = random_tensor({kTokens, kIn}, 1);
      const at::Tensor half = (is_column ? own_rows(full, tp) : own_part(full, 1)).requires_grad_();
      int count = 0;
      const auto forward = [&](const LayerInput& x) { return is_column ? column.forward(x) : row.forward(x); };
      const auto gradients = [&](const at::Tensor& y) {
        y.square().sum().backward();
        std::vector<at::Tensor> all = {half.grad().clone(), leaves[0]->tensor.grad().clone()};
        half.mutable_grad().reset();
        for (Parameter* leaf : leaves) leaf->tensor.mutable_grad().reset();
        return all;
      };
      const std::vector<at::Tensor> wanted = gradients(forward(doubled(half, &count).first));
      const std::vector<at::Tensor> seen = gradients(forward(doubled(half, &count).second));
      EXPECT_TRUE(at::equal(seen[0], wanted[0]) && at::equal(seen[1], wanted[1]));
      EXPECT_EQ(count, 1);

      leaves[0]->tensor.set_requires_grad(false);
      forward(doubled(half, &count).second).square().sum().backward();
      EXPECT_EQ(count, 1) << "a frozen weight needs no input";
    }
  }
}

TEST(LinearLayers, KeepNothingOfAnInputThatIsComputedAgain) {
  ColumnParallelLinear layer({}, kIn, {{"up", kOut}}, false, {}, of(at::kDouble));
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Loose);
  int count = 0;
  const at::Tensor half = random_tensor({kTokens, kIn}, 1).requires_grad_();
  auto input = std::make_unique<std::pair<at::Tensor, LayerInput>>(doubled(half, &count));
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory = input->first.storage().getWeakStorageImpl();
  const at::Tensor y = layer.forward(input->second);
  EXPECT_FALSE(memory.expired());
  input.reset();
  EXPECT_TRUE(memory.expired());
  y.sum().backward();
  EXPECT_EQ(count, 1);
}

TEST(LinearLayers, SequenceParallelRefusesRowsThatDoNotDivide) {
  const TensorParallel tp = tensor_parallel(true);
  if (tp.group.size() == 1) GTEST_SKIP() << "over one rank all rows divide";
  RowParallelLinear row(tp, "down", kIn, kOut, false, {}, of(at::kFloat));
  materialize(row.parameters(), full_values(row.parameters()), Storage::Loose);
  EXPECT_THROW(row.forward(at::ones({kTokens + 1, kIn / tp.group.size()})), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain::testing
