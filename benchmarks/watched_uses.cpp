// Measures what it costs that operators tell Fsdp which unit they use: a step of a torch::nn::Module alone, inside
// Fsdp::run(forward), and with each unit named, in turn, on one rank; and one small operator with and without a watch.
//
//   tools/build release watched_uses_benchmark && OMP_NUM_THREADS=1 build/release/benchmarks/watched_uses_benchmark

#include <torch/nn/modules.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "fsdp/fsdp.h"
#include "fsdp/module.h"
#include "fsdp/uses.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

constexpr int kRepetitions = 21;

double median_of(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + kRepetitions / 2, seconds.end());
  return seconds[kRepetitions / 2];
}

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Layers with a norm each. x: [B, width].
struct Layers : torch::nn::Module {
  Layers(int count, int64_t width) {
    for (int i = 0; i < count; ++i) {
      layers->push_back(torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
                                              torch::nn::Linear(width, width), torch::nn::GELU()));
    }
    register_module("layers", layers);
  }
  at::Tensor layer(size_t i, const at::Tensor& x) { return x + layers->at<torch::nn::SequentialImpl>(i).forward(x); }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < layers->size(); ++i) x = layer(i, x);
    return x.square().sum();
  }
  torch::nn::ModuleList layers;
};

void row(int64_t rows, int64_t width) {
  constexpr int kLayers = 8;
  Layers alone(kLayers, width), watched(kLayers, width), named(kLayers, width);
  const ModuleUnits watched_units(watched, {"layers.*"}), named_units(named, {"layers.*"});
  Fsdp watched_fsdp(watched_units.specs(), {}), named_fsdp(named_units.specs(), {});
  const at::Tensor x = at::randn({rows, width});
  const auto step = [](Fsdp& fsdp, const std::function<at::Tensor()>& forward) {
    fsdp.begin_step();
    const at::Tensor loss = forward();
    fsdp.begin_backward(/*last=*/true);
    loss.backward();
    fsdp.end_backward();
  };
  std::vector<double> times[3];
  for (int i = -3; i < kRepetitions; ++i) {
    const double seconds[] = {
        seconds_of([&] {
          alone.zero_grad(/*set_to_none=*/false);
          alone.forward(x).backward();
        }),
        seconds_of([&] { step(watched_fsdp, [&] { return watched_fsdp.run([&] { return watched.forward(x); }); }); }),
        seconds_of([&] {
          step(named_fsdp, [&] {
            at::Tensor y = x;
            for (size_t unit = 0; unit < kLayers; ++unit) {
              y = named_fsdp.run(unit, [&] { return named.layer(unit, y); });
            }
            return y.square().sum();
          });
        })};
    for (int j = 0; j < 3 && i >= 0; ++j) times[j].push_back(seconds[j]);
  }
  const double base = median_of(times[0]);
  std::printf("| %lld x %lld | %.2f ms | %.3f | %.3f |\n", static_cast<long long>(rows), static_cast<long long>(width),
              1e3 * base, median_of(times[1]) / base, median_of(times[2]) / base);
}

/// Returns the seconds that a watch adds to a small operator.
double seconds_of_a_watch() {
  constexpr int kOperators = 20000;
  const std::vector<Unit> none;
  const UnitStorages storages(none);
  const at::Tensor x = at::ones({4});
  const at::NoGradGuard no_grad;
  std::vector<double> without, with;
  const auto add = [&] {
    for (int i = 0; i < kOperators; ++i) at::add(x, x);
  };
  for (int i = 0; i < kRepetitions; ++i) {
    without.push_back(seconds_of(add));
    const WatchedUses watch(storages, [](const std::string&, const std::vector<UnitUse>&) {});
    with.push_back(seconds_of(add));
  }
  return (median_of(with) - median_of(without)) / kOperators;
}

}  // namespace
}  // namespace meshtrain

int main() {
  std::printf("a watch adds %.2f us to an operator of two operands\n\n", 1e6 * meshtrain::seconds_of_a_watch());
  std::printf("8 layers of LayerNorm, Linear, GELU, fp32, forward and backward\n\n");
  std::printf("| input | the module alone | Fsdp::run(forward) | Fsdp::run(unit, forward) |\n|---|---|---|---|\n");
  meshtrain::row(16, 64);
  meshtrain::row(64, 256);
  meshtrain::row(256, 512);
}
