// Forward and backward of a layer of experts that are cut over ranks, of one thread each: the seconds of the slowest
// rank. benchmarks/experts_over_ranks.py is the same layer of torch's own collectives and products.
//
//   tools/build release experts_over_ranks_benchmark
//   tools/ranks 2 build/release/benchmarks/experts_over_ranks_benchmark
//   tools/ranks 2 python benchmarks/experts_over_ranks.py

#include <array>
#include <cstdio>

#include "best_seconds.h"
#include "expert_parallel/experts.h"
#include "expert_parallel/routing.h"
#include "mesh/connect.h"
#include "mesh/device/aten.h"

int main() {
  using namespace meshtrain;
  at::set_num_threads(1);
  const Group world = connect_ranks();
  constexpr int kRepetitions = 7;
  if (world.rank() == 0) std::printf("| dtype | tokens of a rank, experts x slots, M, F | ms |\n|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [tokens, num_experts, slots, width, features] :
         {std::array<int64_t, 5>{1024, 8, 2, 512, 768}, {1024, 32, 4, 512, 256}, {2048, 64, 8, 256, 128}}) {
      at::manual_seed(1 + static_cast<uint64_t>(world.rank()));
      const auto leaf = [&](at::IntArrayRef shape) {
        at::Tensor made = (at::randn(shape) * 0.05).to(dtype).requires_grad_();
        made.mutable_grad() = at::zeros_like(made).detach();
        return made;
      };
      const int64_t own = num_experts / world.size();
      const ExpertWeights experts{leaf({own, 2 * features, width}), leaf({own, width, features}), {}, {}};
      const at::Tensor x = leaf({tokens, width}), dy = at::randn({tokens, width}).to(dtype);
      const Router router{.num_experts = num_experts, .top_k = slots, .normalises = true};
      const at::Tensor logits = at::randn({tokens, num_experts}).requires_grad_();
      const double seconds = best_seconds(kRepetitions, [&] {
        world.barrier();
        const Routing routing = route(router, logits);
        mixture_over_ranks(x, routing.weights, sort_by_expert(routing.choices, num_experts), experts, silu_activation(),
                           true, world, [](const auto& compute) { return compute(); })
            .backward(dy);
      });
      at::Tensor slowest = at::tensor({seconds}, at::kDouble);
      world.all_reduce(slowest, Reduce::Max).wait();
      if (world.rank() != 0) continue;
      std::printf("| %s | %ld, %ld x %ld, %ld, %ld | %.1f |\n", c10::toString(dtype), tokens, num_experts, slots, width,
                  features, slowest.item<double>() * 1e3);
      std::fflush(stdout);
    }
  }
}
