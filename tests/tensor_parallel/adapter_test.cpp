#include "tensor_parallel/adapter.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/linear.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kAdapterTokens = 12;
constexpr int64_t kAdapterIn = 16;
constexpr int64_t kAdapterOut = 20;

/// Sequence parallel, dropout, storage, dtype.
class AdapterTest : public ::testing::TestWithParam<std::tuple<bool, double, Storage, at::ScalarType>> {
 protected:
  bool sequence_parallel() const { return std::get<0>(GetParam()); }
  double dropout() const { return std::get<1>(GetParam()); }
  Storage storage() const { return std::get<2>(GetParam()); }
  at::ScalarType dtype() const { return std::get<3>(GetParam()); }
  double tolerance() const { return dtype() == at::kDouble ? 1e-12 : 1e-5; }

  AdapterOptions options(int64_t rank, double scale) const {
    return {.rank = rank, .scale = scale, .dropout = {dropout(), 7}, .initializer = {Initializer::Kind::Normal, 1}};
  }
  at::Tensor tokens(int64_t micro_batch) const { return at::arange(kAdapterTokens) * 5 + 100 * micro_batch; }
};

INSTANTIATE_TEST_SUITE_P(Layers, AdapterTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0.0, 0.25),
                                            ::testing::Values(Storage::Loose, Storage::Flat),
                                            ::testing::Values(at::kDouble, at::kFloat)));

using Values = std::map<std::string, at::Tensor>;

/// Returns the output of a layer of `name` without a mesh. `factors`: what dropout multiplies x by.
at::Tensor plain_layer(const at::Tensor& x, const Values& values, const std::string& name, double scale,
                       const at::Tensor& factors) {
  const at::Tensor y = at::matmul(x, values.at(name + ".weight").t());
  if (!values.contains(name + ".lora_A.weight")) return y;
  const at::Tensor hidden = at::matmul(x * factors, values.at(name + ".lora_A.weight").t());
  return y + scale * at::matmul(hidden, values.at(name + ".lora_B.weight").t());
}

/// Expects the sums over tp of the gradients that are partial there, and the other gradients, to be those in `values`.
/// Base weights are frozen.
void expect_gradients(const std::vector<Parameter*>& parameters, const Values& values, const TensorParallel& tp,
                      double tolerance) {
  for (const Parameter* parameter : parameters) {
    if (!parameter->tensor.requires_grad()) continue;
    at::Tensor gradient = parameter->tensor.grad().clone();
    if (!parameter->partial_over.empty()) tp.group.all_reduce(gradient).wait();
    const at::Tensor expected = own_box(*parameter, values.at(parameter->name).grad());
    EXPECT_LT(relative_error(gradient, expected), tolerance) << parameter->name;
  }
}

void freeze_base(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (parameter->name.find("lora_") == std::string::npos) parameter->tensor.set_requires_grad(false);
  }
}

TEST_P(AdapterTest, OfAColumnParallelLayerIsThePlainOne) {
  const TensorParallel tp = tensor_parallel(sequence_parallel());
  const std::vector<ColumnParallelLinear::Output> outputs = {
      {"q", 16, options(4, 0.5)}, {"k", 8}, {"v", 4, options(2, 3)}};
  ColumnParallelLinear layer(tp, kAdapterIn, outputs, false, {Initializer::Kind::Normal, 1},
                             at::TensorOptions(dtype()));
  const Values values = full_values(layer.parameters());
  materialize(layer.parameters(), values, storage());
  freeze_base(layer.parameters());

  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor factors =
        drop(at::ones({kAdapterTokens, kAdapterIn}, at::kDouble), tokens(micro_batch), 0, {dropout(), 7});
    const at::Tensor full_x = random_tensor({kAdapterTokens, kAdapterIn}, 1 + micro_batch).requires_grad_();
    std::vector<at::Tensor> own_y, own_dy, full_y, full_dy;
    for (const auto& [name, features, adapter] : outputs) {
      full_y.push_back(plain_layer(full_x, values, name, adapter ? adapter->scale : 0, factors));
      full_dy.push_back(random_tensor({kAdapterTokens, features}, static_cast<uint64_t>(10 * micro_batch + features)));
      own_y.push_back(own_part(full_y.back(), 1));
      own_dy.push_back(own_part(full_dy.back(), 1));
    }
    at::cat(full_y, 1).backward(at::cat(full_dy, 1));

    const at::Tensor x = own_rows(full_x, tp).to(dtype()).requires_grad_();
    const at::Tensor y = layer.forward(x, tokens(micro_batch));
    EXPECT_LT(relative_error(y, at::cat(own_y, 1)), tolerance());
    y.backward(at::cat(own_dy, 1).to(dtype()));
    EXPECT_LT(relative_error(x.grad(), own_rows(full_x.grad(), tp)), tolerance());
  }
  expect_gradients(layer.parameters(), values, tp, tolerance());
}

TEST_P(AdapterTest, OfARowParallelLayerIsThePlainOne) {
  const TensorParallel tp = tensor_parallel(sequence_parallel());
  RowParallelLinear layer(tp, "down", kAdapterIn, kAdapterOut, false, {Initializer::Kind::Normal, 1},
                          at::TensorOptions(dtype()), options(3, 0.5));
  const Values values = full_values(layer.parameters());
  materialize(layer.parameters(), values, storage());
  freeze_base(layer.parameters());

  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor factors =
        drop(at::ones({kAdapterTokens, kAdapterIn}, at::kDouble), tokens(micro_batch), 0, {dropout(), 7});
    const at::Tensor full_x = random_tensor({kAdapterTokens, kAdapterIn}, 1 + micro_batch).requires_grad_();
    const at::Tensor full_dy = random_tensor({kAdapterTokens, kAdapterOut}, 3 + micro_batch);
    const at::Tensor full_y = plain_layer(full_x, values, "down", 0.5, factors);
    full_y.backward(full_dy);

    const at::Tensor x = own_part(full_x, 1).to(dtype()).requires_grad_();
    const at::Tensor y = layer.forward(x, tokens(micro_batch));
    EXPECT_LT(relative_error(y, own_rows(full_y, tp)), tolerance());
    y.backward(own_rows(full_dy, tp).to(dtype()));
    EXPECT_LT(relative_error(x.grad(), own_part(full_x.grad(), 1)), tolerance());
  }
  expect_gradients(layer.parameters(), values, tp, tolerance());
}

TEST(Adapters, DeclareTheirFactors) {
  const DeviceMesh mesh = imagined_mesh(1, 4);
  const TensorParallel tp{mesh.group("tp"), false};
  const AdapterOptions adapter{.rank = 2, .initializer = {.kind = Initializer::Kind::Uniform, .bound = 0.5}};
  ColumnParallelLinear column(tp, 6, {{"q", 8, adapter}, {"k", 4}, {"v", 4, adapter}}, true, {}, at::kFloat);
  const std::vector<Parameter*> all = column.parameters();
  ASSERT_EQ(all.size(), 10U);
  EXPECT_EQ(all[6]->name, "q.lora_A.weight");
  EXPECT_EQ(all[6]->shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(all[6]->partial_over, "tp");
  EXPECT_EQ(all[6]->sharded_over, "");
  EXPECT_FALSE(all[6]->follows_previous);
  EXPECT_EQ(all[6]->initializer.bound, 0.5);
  EXPECT_EQ(all[7]->name, "v.lora_A.weight");
  EXPECT_TRUE(all[7]->follows_previous) << "one product for both";
  EXPECT_EQ(all[8]->name, "q.lora_B.weight");
  EXPECT_EQ(all[8]->box, (Box{{2, 0}, {2, 2}}));
  EXPECT_EQ(all[8]->partial_over, "");
  EXPECT_EQ(all[8]->initializer.kind, Initializer::Kind::Zeros);

  RowParallelLinear row(tp, "o", 8, 6, true, {}, at::kFloat, adapter);
  ASSERT_EQ(row.parameters().size(), 4U);
  EXPECT_EQ(row.parameters()[2]->box, (Box{{0, 2}, {2, 2}}));
  EXPECT_EQ(row.parameters()[2]->partial_over, "");
  EXPECT_EQ(row.parameters()[3]->shape, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(row.parameters()[3]->partial_over, "tp") << "each rank has the hidden values of its features";
}

TEST(Adapters, WithoutTokensDropNothing) {
  const AdapterOptions dropping{.rank = 2, .dropout = {0.5, 7}}, plain{.rank = 2};
  ColumnParallelLinear with({}, kAdapterIn, {{"up", kAdapterOut, dropping}}, false, {}, at::kDouble);
  ColumnParallelLinear without({}, kAdapterIn, {{"up", kAdapterOut, plain}}, false, {}, at::kDouble);
  const Values values = full_values(with.parameters());
  materialize(with.parameters(), values, Storage::Loose);
  materialize(without.parameters(), values, Storage::Loose);
  const at::Tensor x = random_tensor({kAdapterTokens, kAdapterIn}, 1);
  EXPECT_TRUE(at::equal(with.forward(x), without.forward(x)));
  EXPECT_FALSE(at::equal(with.forward(x, at::arange(kAdapterTokens)), without.forward(x)));
}

}  // namespace
}  // namespace meshtrain::testing
