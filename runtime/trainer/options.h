#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "context_parallel/choice.h"
#include "fsdp/options.h"
#include "mesh/layout.h"
#include "runtime/model/recompute.h"
#include "runtime/model/shape.h"
#include "runtime/optimizer/options.h"

namespace meshtrain {

/// The sizes of a step.
struct BatchOptions {
  int64_t sequence_length = 0;
  int64_t global_batch = 0;  ///< sequences of a step
  int64_t micro_batch = 1;   ///< sequences that a rank computes at once
};

/// The factor of the loss before the backward, for fp16.
struct LossScaleOptions {
  std::optional<double> fixed = {};  ///< key `static`: a constant scale that replaces all members below
  double initial = 65536;
  int64_t growth_interval = 2000;  ///< finite steps in a row after which the scale grows
  double growth_factor = 2;
  double backoff_factor = 0.5;  ///< factor after a skipped step
  double min = 1;
};

/// The dtypes of a run, and how a run in a half precision keeps small numbers.
struct Precision {
  at::ScalarType compute = at::kFloat;   ///< dtype of activations, and of parameters in the layers
  at::ScalarType residual = at::kFloat;  ///< dtype of the residual stream: `compute`, or wider
  bool mixed = false;                    ///< keeps shards in fp32 and rounds them to `compute` for the layers
  at::ScalarType reduce = at::kFloat;    ///< dtype in which gradients are added up and reduced
  std::optional<LossScaleOptions> loss_scale = {};  ///< factor of the loss before the backward, for fp16_mixed
  bool stochastic_rounding = false;                 ///< rounds the optimizer's results stochastically, for bf16 only
};

/// The memory that holds shards, their gradients and the optimizer's state.
enum class Offload { None, Host, Disk };

/// The layout of parameters on the ranks that hold the same part of the model.
struct ShardingChoice {
  ShardingMode mode = ShardingMode::NoShard;
  std::vector<std::string> axes = {kDataAxis};  ///< axes whose ranks share the units: dp, or dp and cp
  int64_t num_ranks = 1;                        ///< number of ranks on these axes
  bool hybrid = false;  ///< true: shards are cut over some of these ranks, the others are replicas
  /// The number of ranks that share a copy, when hybrid; none: the ranks of a host.
  std::optional<int64_t> shard_size = {};
};

/// All that decides how a model is trained on a mesh.
struct TrainerOptions {
  ModelShape shape;
  std::filesystem::path weights = {};  ///< Hugging Face folder of the initial weights; empty: drawn with `seed`
  uint64_t seed = 0;
  std::vector<std::string> freeze = {};    ///< globs for the names of parameters that are not trained
  std::optional<int64_t> frozen_row = {};  ///< the token whose lookups give the embedding no gradient
  BatchOptions batch = {};
  bool has_documents = false;  ///< samples may hold several documents
  Precision precision = {};
  bool sequence_parallel = false;  ///< cuts the residual stream over tp
  ContextChoice context = {};
  Recomputation recomputation = {};
  ShardingChoice sharding = {};
  int64_t unit_layers = 1;  ///< number of blocks in an FSDP unit
  FsdpOptions fsdp = {};    ///< reshard_after_forward, accumulate_unsharded, prefetch; fsdp_options() sets the others
  Offload offload = Offload::None;
  std::filesystem::path offload_folder = {};  ///< of the ranks' files, for Offload::Disk
  OptimizerOptions optimizer = {};
  double clip_norm = 1;  ///< 0: no clipping
};

}  // namespace meshtrain
