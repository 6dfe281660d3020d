// Compares updates of shards on a GPU with the optimizer's state in host memory or on disk with those whose state is on
// the GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "runtime/training/optimizer/box_optimizer.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kUnits = 5;

/// Returns values on the host in [-1, 1], the same for the same seed.
at::Tensor values_of(const std::vector<int64_t>& shape, int64_t seed) {
  return at::arange(at::empty(shape).numel(), at::kDouble).mul_(seed + 1).sin_().view(shape);
}

/// Polyak's heavy ball, box by box.
class HeavyBall final : public BoxOptimizer {
 public:
  HeavyBall(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups)
      : BoxOptimizer(options, groups, {"velocity"}) {}

 protected:
  void update_box(const ParameterBox& box, double learning_rate) override {
    at::Tensor values = box.values, velocity = box.state.at(0);
    velocity.mul_(0.9).add_(box.gradients);
    values.add_(velocity, -learning_rate);
  }
};

struct UpdateCase {
  std::string optimizer;
  at::ScalarType dtype = at::kFloat;
  bool rounds_stochastically = false;
  bool nesterov = true;
};

void PrintTo(const UpdateCase& of, std::ostream* out) {
  *out << of.optimizer << " " << of.dtype << (of.nesterov ? "" : ", no nesterov");
}

/// Units of a matrix and a vector on the GPU; one matrix is larger than StatePager::kPiece.
struct Units {
  Units(const UpdateCase& of, const std::optional<ShardMemory>& state_memory) : dtype(of.dtype) {
    std::vector<UnitSpec> units;
    for (int64_t unit = 0; unit < kUnits; ++unit) {
      const std::string name = "unit" + std::to_string(unit);
      const int64_t rows = unit == 2 ? StatePager::kPiece / 32 + 3 : 48 + unit;
      std::vector<Parameter*> own;
      for (const auto& [suffix, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
               {".matrix", {rows, of.optimizer == "muon" ? 4 : 40}}, {".vector", {40}}}) {
        const at::TensorOptions options = at::TensorOptions(gpu()).dtype(dtype);
        parameters.push_back(std::make_unique<Parameter>(full_parameter(name + suffix, shape, {}, options)));
        parameters.back()->tensor.set_requires_grad(true);
        own.push_back(parameters.back().get());
      }
      units.push_back({name, own});
    }
    fsdp = std::make_unique<Fsdp>(std::move(units), FsdpOptions{.state_memory = state_memory});
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->tensor.detach().copy_(values_of(parameters[i]->shape, static_cast<int64_t>(i)));
    }
    OptimizerOptions options;
    options.name = of.optimizer;
    options.weight_decay = 0.1;
    options.momentum = 0.9;
    options.muon.nesterov = of.nesterov;
    if (of.optimizer == "heavy ball") {
      optimizer = std::make_unique<HeavyBall>(options, groups());
    } else {
      const auto rounding = of.rounds_stochastically ? std::optional(StochasticRounding(3)) : std::nullopt;
      optimizer = make_optimizer(options, groups(), rounding);
    }
  }

  std::vector<ParameterGroup> groups() const { return {{fsdp.get(), {}}}; }

  /// Makes four updates, one of them skipped. Returns all parameters and all state.
  std::vector<at::Tensor> update() {
    const at::TensorOptions options(gpu());
    for (int64_t step = 0; step < 4; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i]->tensor.mutable_grad().copy_(
            values_of(parameters[i]->shape, 100 * step + static_cast<int64_t>(i)));
      }
      optimizer->step({at::full({}, 0.01, options.dtype(at::kDouble)), at::full({}, 0.5, options.dtype(at::kDouble)),
                       at::full({}, step == 2, options.dtype(at::kBool))});
    }
    optimizer->finish_copies();
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters) all.push_back(parameter->tensor.detach().cpu());
    for (const ShardTensor& each : optimizer->state()) all.push_back(each.values.cpu());
    return all;
  }

  at::ScalarType dtype;
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<Fsdp> fsdp;
  std::unique_ptr<Optimizer> optimizer;
};

class PagedStateOnGpu : public ::testing::TestWithParam<UpdateCase> {};

TEST_P(PagedStateOnGpu, HasTheBitsOfStateOnTheGpu) {
  if (!gpu().is_cuda()) GTEST_SKIP() << "state is in host memory anyway";
  Units unpaged(GetParam(), std::nullopt);
  const std::vector<at::Tensor> expected = unpaged.update();
  EXPECT_EQ(unpaged.optimizer->paging_bytes(), 0);
  for (const bool disk : {false, true}) {
    Units paged(GetParam(),
                disk ? ShardMemory::on_disk(std::filesystem::temp_directory_path()) : ShardMemory::on_host());
    const std::vector<at::Tensor> found = paged.update();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << disk << " " << i;
    int64_t bytes = 0;
    for (const ShardTensor& each : paged.optimizer->state()) {
      EXPECT_TRUE(each.values.is_cpu());
      bytes += static_cast<int64_t>(each.values.nbytes());
    }
    const CopyCosts copied = paged.optimizer->copy_costs();
    EXPECT_EQ(copied.to_device, copied.to_host);
    EXPECT_GE(copied.to_host, 3 * bytes) << "all state in each update";
    EXPECT_LE(copied.to_host, 4 * bytes) << "in the one that is skipped perhaps none";
    EXPECT_GT(paged.optimizer->paging_bytes(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, PagedStateOnGpu,
                         ::testing::Values(UpdateCase{"adamw"}, UpdateCase{"adamw", at::kBFloat16, true},
                                           UpdateCase{"sgd"}, UpdateCase{"sgd", at::kBFloat16, true},
                                           UpdateCase{"heavy ball"}, UpdateCase{"muon"},
                                           UpdateCase{"muon", at::kFloat, false, /*nesterov=*/false}));

}  // namespace
}  // namespace meshtrain::testing
