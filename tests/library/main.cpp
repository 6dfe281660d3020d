// Trains modules that know nothing of meshtrain on the ranks that it is started with, and compares losses and weights
// with those of one rank without meshtrain.   train_modules FOLDER FIRST LAST: steps FIRST to LAST, of checkpoints in
// FOLDER. Prints a line for each difference; the status is 1 when there is one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "modules.h"
#include "train.h"

namespace {

using meshtrain::MicroBatch;
using meshtrain::ShardingMode;

constexpr int64_t kMicroBatches = 4, kSamples = 6;  // of a step, and of a micro-batch
constexpr double kLearningRate = 0.05, kMomentum = 0.9, kClipNorm = 1, kTolerance = 1e-10;

bool failed = false;

void expect(bool holds, const std::string& problem) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", problem.c_str());
  failed = true;
}

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

MicroBatch micro_batch(const std::vector<int64_t>& shape, int64_t step, int64_t index) {
  const at::Tensor numbers = at::arange(c10::multiply_integers(shape), at::kDouble);
  return {(numbers * 0.37 + static_cast<double>(7 * step + index)).sin().view(shape).contiguous(),
          at::arange(kSamples, at::kLong).add(step + index).remainder(5)};
}

/// A module, its units, and the shape of a micro-batch of inputs.
template <class Net>
struct Case {
  std::string name;
  std::vector<std::string> units;
  std::vector<int64_t> shape;

  /// Returns the same module in every call.
  static std::shared_ptr<Net> make() {
    at::manual_seed(3);
    auto net = std::make_shared<Net>();
    net->to(at::kDouble);
    return net;
  }
};

/// One rank without meshtrain: the losses and weights after each step.
struct Alone {
  std::vector<double> losses;
  std::vector<std::map<std::string, at::Tensor>> weights;
};

template <class Net>
Alone train_alone(const Case<Net>& model, int64_t last_step) {
  const auto net = model.make();
  std::map<const void*, at::Tensor> velocities;
  Alone alone;
  for (int64_t step = 0; step < last_step; ++step) {
    net->zero_grad();
    double loss = 0;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const MicroBatch batch = micro_batch(model.shape, step, i);
      const at::Tensor mean = net->forward(batch.inputs, batch.labels) / (kMicroBatches * kSamples);
      mean.backward();
      loss += mean.template item<double>();
    }
    const at::NoGradGuard no_grad;
    std::map<const void*, at::Tensor> trained;  // a layer with two names has its parameters twice
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined()) trained.emplace(parameter.unsafeGetTensorImpl(), parameter);
    }
    double squares = 0;
    for (const auto& [key, parameter] : trained) squares += parameter.grad().square().sum().template item<double>();
    const double factor = std::min(1.0, kClipNorm / (std::sqrt(squares) + 1e-6));
    for (auto& [key, parameter] : trained) {
      at::Tensor& velocity = velocities.try_emplace(key, at::zeros_like(parameter)).first->second;
      velocity.mul_(kMomentum).sub_(parameter.grad() * factor, kLearningRate);
      parameter.add_(velocity);
    }
    alone.losses.push_back(loss);
    auto& weights = alone.weights.emplace_back();
    for (const auto& named : net->named_parameters()) weights.emplace(named.key(), named.value().detach().clone());
  }
  return alone;
}

void compare(meshtrain::Trainer& trainer, const std::map<std::string, at::Tensor>& expected, const std::string& where) {
  trainer.groups().front().fsdp->visit_values([&](const meshtrain::Unit& unit) {
    for (const meshtrain::Parameter* parameter : unit.parameters()) {
      const at::Tensor& wanted = expected.at(parameter->name);
      const double difference = (parameter->tensor.detach() - wanted).abs().max().item<double>();
      expect(difference <= kTolerance * wanted.abs().max().item<double>(),
             where + ": " + parameter->name + " differs by " + text_of(difference));
    }
  });
}

template <class Net>
void run(const Case<Net>& model, const meshtrain::DeviceMesh& mesh, const std::filesystem::path& folder, int64_t first,
         int64_t last) {
  const Alone alone = train_alone(model, last);
  const std::vector<ShardingMode> modes = {ShardingMode::NoShard, ShardingMode::ShardOptimizer,
                                           ShardingMode::ShardGradOp, ShardingMode::FullShard};
  const int64_t own = kMicroBatches / mesh.size();
  for (size_t i = 0; i < modes.size(); ++i) {
    const auto net = model.make();
    int64_t expected_step = first;
    const auto read = [&](int64_t step) {
      meshtrain::StepBatch batch;
      for (int64_t j = mesh.rank() * own; j < (mesh.rank() + 1) * own; ++j) {
        batch.micro_batches.push_back(micro_batch(model.shape, step, j));
        batch.num_counted += kSamples;
      }
      return batch;
    };
    const auto report = [&](meshtrain::Trainer& trainer, int64_t step, double loss) {
      const std::string where = model.name + " in mode " + std::to_string(i) + " at step " + std::to_string(step);
      ++expected_step;
      expect(step == expected_step, where + ": the step should be " + std::to_string(expected_step));
      const double wanted = alone.losses.at(static_cast<size_t>(step - 1));
      expect(std::abs(loss - wanted) <= kTolerance * wanted,
             where + ": the loss is " + text_of(loss) + ", alone " + text_of(wanted));
      compare(trainer, alone.weights.at(static_cast<size_t>(step - 1)), where);
    };
    // Each start trains a checkpoint in another mode than the one that wrote it.
    train(*net, model.units, mesh, modes[(i + static_cast<size_t>(first)) % modes.size()],
          folder / (model.name + "-" + std::to_string(i)), last, read, report);
    expect(expected_step == last, model.name + ": the last step was " + std::to_string(expected_step));
  }
}

void expect_an_end_at_nan(const meshtrain::DeviceMesh& mesh, const std::filesystem::path& folder) {
  const auto net = Case<meshtrain::testing::MlpImpl>::make();
  const auto read = [](int64_t step) {
    MicroBatch batch = micro_batch({kSamples, 12}, step, 0);
    batch.inputs.fill_(std::nan(""));
    return meshtrain::StepBatch{{batch}, kSamples};
  };
  try {
    train(*net, {}, mesh, ShardingMode::NoShard, folder / "nan", 1, read, [](auto&&...) {});
    expect(false, "a step that is not finite was not reported");
  } catch (const meshtrain::AgreedError& error) {
    expect(std::string(error.what()).ends_with(": first.weight"), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto make = [](const auto& options, const auto& groups, const auto& /*rounding*/) {
    return std::make_unique<HeavyBall>(options, groups);
  };
  meshtrain::register_optimizer("heavy_ball", make, {[](const auto&, const auto&) { return 1; }});  // one velocity
  return meshtrain::run_on_ranks([&](const meshtrain::Group& ranks) {
    const meshtrain::DeviceMesh mesh(meshtrain::MeshLayout({{"dp", ranks.size()}}), ranks);
    const int64_t first = std::atol(argv[2]), last = std::atol(argv[3]);
    using meshtrain::testing::MlpImpl, meshtrain::testing::VitImpl;
    run<VitImpl>({"vit", {"patches", "blocks.*", "head"}, {kSamples, 1, 8, 8}}, mesh, argv[1], first, last);
    run<MlpImpl>({"mlp", {"first", "unused", "last"}, {kSamples, 12}}, mesh, argv[1], first, last);
    expect_an_end_at_nan(mesh, argv[1]);
    return failed ? 1 : 0;
  });
}
