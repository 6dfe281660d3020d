// Sums of gradients over the ranks that units are neither cut over nor repeated on: cp for every parameter, and tp for
// gradients that are partial there.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/fsdp/chain.h"

namespace meshtrain {
namespace {

using testing::kMicroBatches;
using testing::kWays;
using testing::random_tensor;
using testing::Way;
using testing::world;

constexpr size_t kUnits = 3;
constexpr int64_t kWidth = 48;

/// Units of a matrix and a norm; the gradient of the norm is partial over tp.
struct NormedChain {
  NormedChain() {
    for (size_t unit = 0; unit < kUnits; ++unit) {
      add("norm", {kWidth}, unit)->partial_over = "tp";
      add("weight", {kWidth, kWidth}, unit);
    }
  }

  Parameter* add(const std::string& kind, const std::vector<int64_t>& shape, size_t unit) {
    parameters.push_back(std::make_unique<Parameter>(
        full_parameter(kind + std::to_string(unit), shape, {}, at::TensorOptions().dtype(at::kDouble))));
    parameters.back()->tensor = (random_tensor(shape, parameters.size()) / 4).requires_grad_();
    return parameters.back().get();
  }

  std::vector<UnitSpec> units() const {
    std::vector<UnitSpec> specs;
    for (size_t unit = 0; unit < kUnits; ++unit) {
      specs.push_back({"unit " + std::to_string(unit), {parameters[2 * unit].get(), parameters[2 * unit + 1].get()}});
    }
    return specs;
  }

  /// Returns the loss of one micro-batch of `rank`. `run(unit, forward)` runs each unit.
  template <class Run>
  at::Tensor loss(int64_t rank, int64_t micro_batch, const Run& run) const {
    at::Tensor x = random_tensor({4, kWidth}, static_cast<uint64_t>(100 + 10 * rank + micro_batch));
    for (size_t unit = 0; unit < kUnits; ++unit) {
      x = run(unit,
              [&] { return at::tanh(at::matmul(x * parameters[2 * unit]->tensor, parameters[2 * unit + 1]->tensor)); });
    }
    return x.square().sum();
  }

  std::vector<std::unique_ptr<Parameter>> parameters;
};

/// Returns the gradient of parameter `index` summed over a step of `ranks`, computed on this rank alone.
at::Tensor gradient_over(const std::vector<int64_t>& ranks, size_t index) {
  const NormedChain alone;
  for (const int64_t rank : ranks) {
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      alone.loss(rank, i, [](size_t, const auto& forward) { return forward(); }).backward();
    }
  }
  return alone.parameters[index]->tensor.grad();
}

void backward_of_step(const NormedChain& chain, Fsdp& fsdp) {
  fsdp.begin_step();
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    const at::Tensor loss =
        chain.loss(world().rank(), i, [&](size_t unit, const auto& forward) { return fsdp.run(unit, forward); });
    fsdp.begin_backward(i + 1 == kMicroBatches);
    loss.backward();
    fsdp.end_backward();
  }
}

class RemainingSums : public ::testing::TestWithParam<Way> {
 protected:
  /// Expects each parameter's gradient to be the sum over its ranks, and each shard to be sent once a step.
  static void expect_sums(int64_t dp, int64_t cp, int64_t tp) {
    const DeviceMesh mesh(MeshLayout({{"dp", dp}, {"cp", cp}, {"tp", tp}}), world());
    FsdpOptions options = GetParam().options(mesh.group("dp"));
    options.remaining = mesh.group("cp").with_purpose("every");
    options.remaining_partial = mesh.group({"cp", "tp"}).with_purpose("partial");
    options.summed_over = mesh.group({"dp", "cp"});
    const NormedChain chain;
    Fsdp fsdp(chain.units(), options);
    for (int step = 0; step < 2; ++step) {
      mesh.traffic().clear();
      backward_of_step(chain, fsdp);
      int64_t every = 0, partial = 0;
      for (const Unit& unit : fsdp.units()) {
        const FlatBuffer& buffer = unit.buffers()[0];
        const int64_t kept = buffer.in_shard({0, buffer.partial_numel()}).numel;
        partial += kept;
        every += buffer.shard().numel - kept;
      }
      EXPECT_EQ(mesh.traffic().total("", "every").buffer_bytes, cp > 1 ? every * 8 : 0);
      EXPECT_EQ(mesh.traffic().total("", "partial").buffer_bytes, cp * tp > 1 ? partial * 8 : 0);
      size_t index = 0;
      fsdp.visit_gradients([&](const Parameter& parameter) {
        const Group& summed = parameter.partial_over.empty() ? mesh.group({"dp", "cp"}) : mesh.world();
        EXPECT_LT(testing::relative_error(parameter.tensor, gradient_over(summed.ranks(), index++)), 1e-12)
            << parameter.name << ": dp=" << dp << " cp=" << cp << " tp=" << tp << ", step " << step;
      });
      EXPECT_EQ(index, 2 * kUnits);
      fsdp.shards_changed();
    }
  }
};

TEST_P(RemainingSums, AreOverCpAndForPartialGradientsOverTp) {
  const int64_t size = world().size();
  for (int64_t dp = 1; dp <= size; dp *= 2) {
    for (int64_t cp = 1; dp * cp <= size; cp *= 2) expect_sums(dp, cp, size / (dp * cp));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RemainingSums, ::testing::ValuesIn(kWays),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace meshtrain
