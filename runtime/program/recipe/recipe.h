#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "runtime/program/profile/step_profile.h"
#include "runtime/program/yaml/rule.h"
#include "runtime/training/data/options.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/optimizer/options.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the words for schedule.name.
inline WordsOf<Schedule> schedule_words() {
  return {{"constant", Schedule::Constant},
          {"cosine", Schedule::Cosine},
          {"linear", Schedule::Linear},
          {"wsd", Schedule::Wsd}};
}

/// Returns the words for train.experts.balance.
inline WordsOf<BalanceScope> balance_words() {
  return {{"none", BalanceScope::None},
          {"sequence", BalanceScope::Sequence},
          {"micro_batch", BalanceScope::MicroBatch},
          {"transformers", BalanceScope::AllLayers}};
}

/// A recipe with every default filled in and every path absolute: load_recipe() returns it and a run keeps it. Members
/// are named like the keys of the YAML file.
struct ModelRecipe {
  std::filesystem::path hf;     ///< Hugging Face folder; empty when the shape is spelled out
  std::string init = "random";  ///< pretrained (the folder's safetensors) or random
  ModelShape shape;
  bool freeze_padding_row = false;  ///< lookups of shape.pad_token_id give the embedding no gradient
};

struct ContextRecipe {
  std::string algorithm = "auto";  ///< auto ring all_gather ulysses
  std::string layout = "auto";     ///< auto contiguous zigzag
};

struct OffloadRecipe {
  std::string to = "none";     ///< none host disk
  std::filesystem::path path;  ///< disk: the folder of the ranks' files
  bool parameters = true;      ///< false: shards and gradients stay on their device
};

struct FsdpRecipe {
  std::string mode = "auto";            ///< auto no_shard shard_optimizer shard_grad_op full_shard hybrid_shard
  std::optional<int64_t> shard_size;    ///< ranks that share one copy, under hybrid_shard; none: the ranks of a host
  std::vector<std::string> shard_axes;  ///< dp, or dp and cp; empty: both
  FsdpOptions options = {};             ///< gathering and reduction of units; the mesh decides the rest
  std::string unit = "block";           ///< block sublayer: the part of the model that is gathered at once
  int64_t unit_layers = 1;              ///< number of blocks in a unit
  std::string reduce_dtype = "auto";    ///< auto fp32 bf16 fp16: dtype in which gradients are added up and reduced
  OffloadRecipe offload = {};           ///< where shards, gradients and optimizer state are kept
};

struct PipelineRecipe {
  std::string schedule = "auto";  ///< auto 1f1b interleaved zb_h1
  int64_t stages_per_rank = 1;    ///< number of stages on each rank of a pipeline
  std::vector<int64_t> layers;    ///< number of blocks in each stage; empty: divided by cost
};

struct ParallelRecipe {
  std::map<std::string, int64_t> mesh;  ///< sizes as written; MeshLayout::kAuto: the remaining ranks
  std::vector<std::string> order = training_axes();
  FsdpRecipe fsdp;
  std::string sequence_parallel = "auto";  ///< auto on off
  ContextRecipe context;
  PipelineRecipe pipeline;
  std::string backend = "auto";           ///< auto mpi nccl
  double stall_warning = 10;              ///< seconds without progress after which a line names who is waited for
  double timeout = 600;                   ///< seconds without progress after which the run ends
  std::string nccl_user_buffers = "off";  ///< off registered symmetric: FSDP's buffers are allocated by NCCL
};

struct CheckpointingRecipe {
  std::string mode = "none";          ///< none full selective
  int64_t every = 1;                  ///< recomputes one block of every `every`, beginning with the first
  std::optional<int64_t> first = {};  ///< recomputes only among the first blocks of each stage; none: among all
};

struct ParameterMetricsRecipe {
  int64_t every = 0;  ///< steps between lines of parameters.jsonl; 0: none
};

struct TrainRecipe : BatchOptions {
  int64_t steps = 0;
  std::string precision = "fp32";              ///< fp64 fp32 bf16 bf16_mixed fp16_mixed
  std::string residual_dtype = "auto";         ///< auto fp32: of the residual stream; auto: that of activations
  std::optional<LossScaleOptions> loss_scale;  ///< for fp16_mixed only
  bool stochastic_rounding = false;            ///< rounds the optimizer's results stochastically, for bf16 only
  bool cuda_graph = false;                     ///< records a step once and replays it, where possible
  std::string cuda_allocator;                  ///< settings of LibTorch's allocator; empty: its defaults
  std::string non_finite = "stop";  ///< stop skip: what to do after a step whose loss or gradients are not finite
  int64_t max_skipped = 25;         ///< skipped steps allowed in a row
  std::optional<OutlierOptions> skip_outliers;  ///< skips steps whose loss or norm is an outlier; none: makes them
  double clip_norm = 1.0;                       ///< 0: no clipping
  double z_loss = 0;                            ///< coefficient of the logits' z-loss
  int64_t seed = 42;
  std::vector<std::string> freeze;          ///< globs for the names of parameters that are not trained
  std::optional<BalancingOptions> experts;  ///< how they are balanced; none: they are not
  ParameterMetricsRecipe parameter_metrics;
  ProfileOptions profile;
  bool tensorboard = false;  ///< writes the metrics as TensorBoard's events too
  CheckpointingRecipe activation_checkpointing;
  bool offload_activations = false;     ///< keeps activations in host memory; no effect on CPU ranks
  int64_t log_every = 1;                ///< steps between console lines
  double device_flops = 0;              ///< FLOP/s that a rank's device can reach at best; 0: not known
  double time_limit = 0;                ///< seconds after which the run stops; 0: no limit
  std::filesystem::path export_folder;  ///< key `export`: Hugging Face folder for the final weights; empty: none
};

struct CheckpointRecipe {
  int64_t every = 0;       ///< steps between checkpoints; 0: only when the run is stopped
  int64_t keep_last = 0;   ///< how many of the newest are kept; 0: all
  int64_t keep_every = 0;  ///< also keeps the steps that are multiples of this; 0: no others
};

struct Recipe {
  // Not inline: many files copy recipes.
  Recipe();
  Recipe(const Recipe&);
  Recipe(Recipe&&) noexcept;
  Recipe& operator=(const Recipe&);
  Recipe& operator=(Recipe&&) noexcept;
  ~Recipe();

  std::string name;  ///< the file's stem
  std::filesystem::path file;
  ModelRecipe model;
  ParallelRecipe parallel;
  DataOptions data;
  EvaluationOptions evaluate;
  TrainRecipe train;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  CheckpointRecipe checkpoint;
  std::string device = "auto";  ///< auto cpu cuda
  /// The location of each key that the recipe sets, for messages: "train.steps" -> "x.yaml:12:5: train.steps" or "--set
  /// train.steps=20"; "" -> the recipe itself, "x.yaml". Empty when no file was read.
  std::map<std::string, std::string> locations = {};
};

}  // namespace meshtrain
