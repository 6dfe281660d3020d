// Forward and backward of experts that are cut over ranks, of one thread each: the seconds of the slowest rank.
// benchmarks/experts_over_ranks.py is the same by torch's own collectives, products and FSDP2.
//
// Two ranks compute one layer, cut over both. Four compute a chain of layers under full_shard: two hold the experts of
// a layer (ep), and two have the same ones (edp), each half of their bytes.
//
//   tools/build release experts_over_ranks_benchmark
//   tools/ranks 2 build/release/benchmarks/experts_over_ranks_benchmark
//   tools/ranks 2 python benchmarks/experts_over_ranks.py

#include <array>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "best_seconds.h"
#include "expert_parallel/experts.h"
#include "expert_parallel/routing.h"
#include "fsdp/fsdp.h"
#include "mesh/connect.h"
#include "mesh/device/aten.h"
#include "runtime/training/model/operators/glu.h"

namespace {

using namespace meshtrain;

constexpr int kRepetitions = 7;
constexpr int64_t kChain = 4;

struct Shape {
  at::ScalarType dtype;
  int64_t tokens, num_experts, slots, width, features;
};

/// Calls measure(shape) for all shapes, and prints the seconds of the slowest rank.
template <class Measure>
void for_shapes(const Group& world, const Measure& measure) {
  if (world.rank() == 0) std::printf("| dtype | tokens of a rank, experts x slots, M, F | ms |\n|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [tokens, num_experts, slots, width, features] :
         {std::array<int64_t, 5>{1024, 8, 2, 512, 768}, {1024, 32, 4, 512, 256}, {2048, 64, 8, 256, 128}}) {
      at::manual_seed(1 + static_cast<uint64_t>(world.rank()));
      at::Tensor slowest =
          at::tensor({measure(Shape{dtype, tokens, num_experts, slots, width, features})}, at::kDouble);
      world.all_reduce(slowest, Reduce::Max).wait();
      if (world.rank() != 0) continue;
      std::printf("| %s | %ld, %ld x %ld, %ld, %ld | %.1f |\n", c10::toString(dtype), tokens, num_experts, slots, width,
                  features, slowest.item<double>() * 1e3);
      std::fflush(stdout);
    }
  }
}

at::Tensor drawn(const Shape& shape, at::IntArrayRef sizes) {
  return (at::randn(sizes) * 0.05).to(shape.dtype);
}

at::Tensor leaf(const Shape& shape, at::IntArrayRef sizes) {
  at::Tensor made = drawn(shape, sizes).requires_grad_();
  made.mutable_grad() = at::zeros_like(made).detach();
  return made;
}

at::Tensor layer(const Shape& shape, const at::Tensor& x, const at::Tensor& logits, const ExpertWeights& experts,
                 const Group& ep, const WithExperts& with_experts) {
  const Router router{.num_experts = shape.num_experts, .top_k = shape.slots, .normalises = true};
  const Routing routing = route(router, logits);
  const PendingDispatch dispatch(routing.choices, shape.num_experts, ep);
  return mixture_over_ranks(x, routing.weights, dispatch.wait(), experts, glu_of_experts(Activation::Silu), true,
                            with_experts);
}

double seconds_of_layer(const Shape& shape, const Group& world) {
  const int64_t own = shape.num_experts / world.size();
  const ExpertWeights experts{
      leaf(shape, {own, 2 * shape.features, shape.width}), leaf(shape, {own, shape.width, shape.features}), {}, {}};
  const at::Tensor x = leaf(shape, {shape.tokens, shape.width}),
                   dy = at::randn({shape.tokens, shape.width}).to(shape.dtype),
                   logits = at::randn({shape.tokens, shape.num_experts}).requires_grad_();
  return best_seconds(kRepetitions, [&] {
    world.barrier();
    layer(shape, x, logits, experts, world, [](const auto& compute) { return compute(); }).backward(dy);
  });
}

double seconds_of_chain(const Shape& shape, const Group& world, const Group& ep, const Group& edp) {
  const int64_t own = shape.num_experts / ep.size();
  std::deque<Parameter> parameters;
  std::vector<UnitSpec> units;
  std::vector<at::Tensor> logits;
  const auto declare = [&](const std::string& name, const std::vector<int64_t>& sizes) {
    parameters.push_back(full_parameter(name, sizes, {}, at::TensorOptions(shape.dtype)));
    parameters.back().tensor = drawn(shape, sizes).requires_grad_();
    parameters.back().written_by_layer = true;
    return &parameters.back();
  };
  for (int64_t i = 0; i < kChain; ++i) {
    const std::string name = "layer " + std::to_string(i);
    units.push_back({name,
                     {declare(name + " gate_up", {own, 2 * shape.features, shape.width}),
                      declare(name + " down", {own, shape.width, shape.features})}});
    logits.push_back(at::randn({shape.tokens, shape.num_experts}).requires_grad_());
  }
  FsdpOptions options;
  options.mode = ShardingMode::FullShard;
  options.shards = edp;
  Fsdp fsdp(units, options);
  const at::Tensor x = leaf(shape, {shape.tokens, shape.width}),
                   dy = at::randn({shape.tokens, shape.width}).to(shape.dtype);
  return best_seconds(kRepetitions, [&] {
    world.barrier();
    fsdp.begin_step();
    at::Tensor y = x;
    for (size_t i = 0; i < units.size(); ++i) {
      const ExpertWeights experts{parameters[2 * i].tensor, parameters[2 * i + 1].tensor, {}, {}};
      y = y + layer(shape, y, logits[i], experts, ep, [&](const auto& compute) { return fsdp.run(i, compute); });
    }
    fsdp.begin_backward(/*last=*/true);
    y.backward(dy);
    fsdp.end_backward();
    fsdp.shards_changed();
  });
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const Group world = connect_ranks();
  if (world.size() < 4) {
    for_shapes(world, [&](const Shape& shape) { return seconds_of_layer(shape, world); });
    return 0;
  }
  const int first = world.rank() / 2 * 2, other = world.rank() % 2;
  const Group ep = world.split({first, first + 1}, "ep"), edp = world.split({other, other + 2}, "edp");
  for_shapes(world, [&](const Shape& shape) { return seconds_of_chain(shape, world, ep, edp); });
}
