// Forward and backward of a layer of experts on one thread, and its six products alone: two of the forward, four of the
// backward. benchmarks/experts_peer.py is the same layer by transformers.
//
//   tools/build release experts_benchmark && build/release/benchmarks/experts_benchmark

#include "expert_parallel/experts.h"

#include <array>
#include <cstdio>

#include "best_seconds.h"
#include "expert_parallel/routing.h"
#include "mesh/device/aten.h"
#include "runtime/training/model/operators/glu.h"

int main() {
  using namespace meshtrain;
  at::set_num_threads(1);
  constexpr int kRepetitions = 7;
  std::printf("| dtype | tokens, experts x slots, M, F | ms | ms of the products |\n|---|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [tokens, num_experts, slots, width, features] : {std::array<int64_t, 5>{1024, 8, 2, 512, 768},
                                                                      {1024, 32, 4, 512, 256},
                                                                      {2048, 64, 8, 256, 128},
                                                                      {512, 8, 2, 1024, 3584}}) {
      const auto leaf = [&](at::IntArrayRef shape) {
        at::Tensor made = (at::randn(shape) * 0.05).to(dtype).requires_grad_();
        made.mutable_grad() = at::zeros_like(made).detach();
        return made;
      };
      const ExpertWeights experts{
          leaf({num_experts, 2 * features, width}), leaf({num_experts, width, features}), {}, {}};
      const at::Tensor x = leaf({tokens, width}), dy = at::randn({tokens, width}).to(dtype);
      const Router router{.num_experts = num_experts, .top_k = slots, .normalises = true};
      const at::Tensor logits = at::randn({tokens, num_experts}).requires_grad_();
      const double layer = best_seconds(kRepetitions, [&] {
        const Routing routing = route(router, logits);
        mixture(x, routing.weights, sort_by_expert(routing.choices, num_experts), experts,
                glu_of_experts(Activation::Silu), true)
            .backward(dy);
      });
      const at::NoGradGuard no_grad;
      const ExpertRows rows = sort_by_expert(route(router, logits).choices, num_experts);
      const at::Tensor in = rows_of_tokens(x, rows), out = grouped_product(in, experts.gate_up, rows.starts);
      const at::Tensor hidden = out.narrow(1, 0, features).contiguous();
      const double products = best_seconds(kRepetitions, [&] {
        grouped_product(in, experts.gate_up, rows.starts);
        grouped_product(hidden, experts.down, rows.starts);
        grouped_product(in, experts.down.transpose(1, 2), rows.starts);
        grouped_product(out, experts.gate_up.transpose(1, 2), rows.starts);
        add_grouped_product(experts.gate_up.grad(), out, in, rows.starts);
        add_grouped_product(experts.down.grad(), in, hidden, rows.starts);
      });
      std::printf("| %s | %ld, %ld x %ld, %ld, %ld | %.1f | %.1f |\n", c10::toString(dtype), tokens, num_experts, slots,
                  width, features, layer * 1e3, products * 1e3);
      std::fflush(stdout);
    }
  }
}
