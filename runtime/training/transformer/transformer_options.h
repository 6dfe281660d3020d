#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "context_parallel/choice.h"
#include "expert_parallel/router_pass.h"
#include "fsdp/options.h"
#include "mesh/layout.h"
#include "pipeline_parallel/schedule.h"
#include "runtime/training/model/recompute.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/trainer/options.h"
#include "runtime/training/transformer/unit_options.h"

namespace meshtrain {

/// A size that a batch has for a time.
struct BatchPhase {
  std::optional<int64_t> until = {};  ///< steps that begin before so many tokens have this size; none: all others
  int64_t size = 0;                   ///< sequences of a step

  bool operator==(const BatchPhase&) const = default;
};

/// The sizes of a step.
struct BatchOptions {
  int64_t sequence_length = 0;
  int64_t global_batch = 0;             ///< sequences of a step; of the last phase when there are phases
  int64_t micro_batch = 1;              ///< sequences that a rank computes at once
  std::vector<BatchPhase> phases = {};  ///< of a batch that grows (batch_growth.h); empty: all steps are alike
};

/// The dtypes of a model.
struct Precision {
  at::ScalarType compute = at::kFloat;   ///< dtype of activations, and of parameters in the layers
  at::ScalarType residual = at::kFloat;  ///< dtype of the residual stream: `compute`, or wider
  bool mixed = false;                    ///< keeps shards in fp32 and rounds them to `compute` for the layers
  at::ScalarType reduce = at::kFloat;    ///< dtype in which gradients are added up and reduced
};

/// The memory that holds the optimizer's state, and shards and their gradients if offload_parameters.
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

/// The division of a Transformer into the stages of a pipeline.
struct PipelineChoice {
  ScheduleKind schedule = ScheduleKind::OneForwardOneBackward;
  /// The number of blocks in each stage, at least 1; the first stage has the embedding besides, the last one the head.
  /// Stage s is on rank s mod ranks of the pipeline. Empty: no pipeline.
  std::vector<int64_t> blocks = {};
};

/// The options of a Transformer on a mesh.
struct TransformerOptions {
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
  PipelineChoice pipeline = {};
  ShardingChoice sharding = {};
  UnitOptions units = {};
  FsdpOptions fsdp = {};  ///< reshard_after_forward, accumulate_unsharded, prefetch; fsdp_options() sets the others
  Offload offload = Offload::None;
  std::filesystem::path offload_folder = {};  ///< of the ranks' files, for Offload::Disk
  bool offload_parameters = true;             ///< false: offloads only the optimizer's state
  bool offload_activations = false;           ///< ActivationOffload on GPUs; no effect on CPU ranks
  BalancingOptions balancing = {};            ///< of experts; no effect without
  double z_loss = 0;                          ///< the coefficient of the logits' z-loss (LogitsZLoss)
};

/// The options for training a Transformer on a mesh.
struct TrainingOptions : TransformerOptions, TrainerOptions {};

}  // namespace meshtrain
