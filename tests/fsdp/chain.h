#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "mesh/device/aten.h"
#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain::testing {

/// A model without parallelism: a chain of matrices of different sizes, one unit each. Tied: the last step uses the
/// first matrix again, transposed.
struct Chain {
  explicit Chain(bool first_is_last = false, at::ScalarType dtype = at::kDouble) : tied(first_is_last) {
    for (size_t i = 0; i + 1 < kWidths.size(); ++i) {
      const std::vector<int64_t> shape = {kWidths[i], kWidths[i + 1]};
      weights.push_back(std::make_unique<Parameter>(
          full_parameter("weight " + std::to_string(i), shape, {}, at::TensorOptions().dtype(dtype))));
      weights.back()->tensor = (random_tensor(shape, 10 + i) / 4).to(dtype).requires_grad_();
    }
  }

  std::vector<UnitSpec> units() const {
    std::vector<UnitSpec> specs;
    for (const auto& weight : weights) specs.push_back({weight->name, {weight.get()}});
    specs.front().whole_step = tied;
    return specs;
  }

  /// Calls `run(unit, forward)` around each use of a unit's parameters.
  template <class Run>
  at::Tensor loss(at::Tensor x, const Run& run) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool last = i + 1 == weights.size() && !tied;
      x = run(i, [&] {
        const at::Tensor y = at::tanh(at::matmul(x, weights[i]->tensor));
        return last ? y.square().sum() : y;
      });
    }
    if (!tied) return x;
    return run(0, [&] { return at::matmul(x.narrow(1, 0, kWidths[1]), weights[0]->tensor.t()).square().sum(); });
  }
  at::Tensor loss(const at::Tensor& x) const {
    return loss(x, [](size_t, const auto& forward) { return forward(); });
  }
  at::Tensor loss(const at::Tensor& x, Fsdp& fsdp) const {
    return loss(x, [&](size_t unit, const auto& forward) { return fsdp.run(unit, forward); });
  }

  static inline const std::vector<int64_t> kWidths = {8, 16, 16, 16, 24, 40};

  bool tied;
  std::vector<std::unique_ptr<Parameter>> weights;
};

inline at::Tensor input_of(int64_t rank, int64_t micro_batch) {
  return random_tensor({4, 8}, static_cast<uint64_t>(100 + 10 * rank + micro_batch));
}

constexpr int64_t kMicroBatches = 3;

/// Runs forward and backward of a step's micro-batches; each rank has its own.
inline void backward_of_step(const Chain& chain, Fsdp& fsdp) {
  fsdp.begin_step();
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    const at::Tensor loss = chain.loss(input_of(world().rank(), i), fsdp);
    fsdp.begin_backward(i + 1 == kMicroBatches);
    loss.backward();
    fsdp.end_backward();
  }
}

/// A way to cut a model over the world.
struct Way {
  std::string name;
  ShardingMode mode;
  bool hybrid = false;
  bool reshard_after_forward = true;
  bool accumulate_unsharded = false;
  int64_t prefetch = 1;

  /// Returns options with `world` as the data-parallel ranks. Collective.
  FsdpOptions options(const Group& world) const {
    FsdpOptions options;
    options.mode = mode;
    options.reshard_after_forward = reshard_after_forward;
    options.accumulate_unsharded = accumulate_unsharded;
    options.prefetch = prefetch;
    options.summed_over = world;
    if (mode == ShardingMode::NoShard) {
      options.replicas = world;
    } else if (!hybrid || world.size() < 4) {
      options.shards = world;
    } else {
      const int pair = world.rank() / 2 * 2, odd = world.rank() % 2;
      options.shards = world.split({pair, pair + 1}, "shards");
      std::vector<int> same;
      for (int rank = odd; rank < world.size(); rank += 2) same.push_back(rank);
      options.replicas = world.split(same, "replicas");
    }
    return options;
  }
};

/// Hosts that fsdp treats differently.
inline const std::vector<Hosts> kHosts = {Hosts::Found, Hosts::Two, Hosts::Refused};

inline const std::vector<Way> kWays = {{"NoShard", ShardingMode::NoShard},
                                       {"ShardOptimizer", ShardingMode::ShardOptimizer},
                                       {"ShardGradOp", ShardingMode::ShardGradOp},
                                       {"ShardGradOpNoSync", ShardingMode::ShardGradOp, false, true, true},
                                       {"FullShard", ShardingMode::FullShard},
                                       {"FullShardKept", ShardingMode::FullShard, false, false},
                                       {"FullShardNoSync", ShardingMode::FullShard, false, true, true},
                                       {"FullShardNoPrefetch", ShardingMode::FullShard, false, true, false, 0},
                                       {"FullShardPrefetch3", ShardingMode::FullShard, false, true, false, 3},
                                       {"Hybrid", ShardingMode::FullShard, true},
                                       {"HybridNoSync", ShardingMode::FullShard, true, true, true}};

}  // namespace meshtrain::testing
