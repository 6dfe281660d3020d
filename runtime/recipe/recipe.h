#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "runtime/model/shape.h"

namespace meshtrain {

/// A recipe with every default filled in and every path absolute: what `load_recipe` gives and a run keeps.
/// Names are those of the YAML file.
struct ModelRecipe {
  std::filesystem::path hf;     ///< Hugging Face folder; empty when the shape is spelled out
  std::string init = "random";  ///< pretrained (the folder's safetensors) or random
  ModelShape shape;
};

struct ContextRecipe {
  std::string algorithm = "auto";  ///< auto ring all_gather ulysses
  std::string layout = "auto";     ///< auto contiguous zigzag
};

struct OffloadRecipe {
  std::string to = "none";     ///< none host disk
  std::filesystem::path path;  ///< disk: the folder of the ranks' files
};

struct FsdpRecipe {
  std::string mode = "auto";            ///< auto no_shard shard_optimizer shard_grad_op full_shard hybrid_shard
  std::optional<int64_t> shard_size;    ///< hybrid_shard: ranks that share one copy; none: those of a host
  std::vector<std::string> shard_axes;  ///< dp, or dp and cp; empty: both
  bool reshard_after_forward = true;    ///< full_shard, hybrid_shard
  bool no_sync = false;                 ///< micro-batches before the last do not communicate gradients
  int64_t prefetch = 1;                 ///< units gathered ahead
  int64_t unit_layers = 1;              ///< blocks of a unit
  std::string reduce_dtype = "fp32";    ///< fp32 bf16 fp16: of gradients, under mixed precision
  OffloadRecipe offload = {};           ///< of shards, their gradients and the optimizer's state
};

struct ParallelRecipe {
  std::map<std::string, int64_t> mesh;  ///< as asked for: MeshLayout::kAuto for one axis that takes the rest
  std::vector<std::string> order = training_axes();
  FsdpRecipe fsdp;
  std::string sequence_parallel = "auto";  ///< auto on off
  ContextRecipe context;
  std::string backend = "auto";           ///< auto mpi nccl
  std::string nccl_user_buffers = "off";  ///< off registered symmetric: FSDP's memory is NCCL's own
};

/// SourceRecipe::documents, the word `index`: as the index of a Megatron file says.
inline constexpr int64_t kDocumentsOfIndex = -1;

/// A token file and what is read of it.
struct SourceRecipe {
  std::filesystem::path tokens;
  std::string source;              ///< the command that makes `tokens`, told when the file is missing; may be empty
  std::string dtype = "uint16";    ///< uint8 uint16 uint32, or megatron: as the index beside it says
  std::string layout = "records";  ///< records stream
  std::optional<int64_t> ignore_id;
  std::filesystem::path loss_mask;  ///< empty: none
  bool shuffle = false;
  std::optional<int64_t> documents;         ///< the token that ends a document: attention stays inside documents
  std::string boundary_labels = "counted";  ///< counted ignored: the first token of a document as the label of the last
};

/// One of several files that samples are taken from in turns.
struct MixedSourceRecipe : SourceRecipe {
  double weight = 1;  ///< its part of the samples is this over the sum of all
};

struct DataRecipe : SourceRecipe {
  std::vector<MixedSourceRecipe> mixture;  ///< empty: the one file `tokens`; else that is empty

  /// What samples are taken from: one file or more.
  std::vector<MixedSourceRecipe> sources() const {
    if (!mixture.empty()) return mixture;
    const MixedSourceRecipe only{*this};
    return {only};
  }
  /// The map that source `i` stands in: "data", "data.mixture[1]".
  std::string source_key(size_t i) const {
    return mixture.empty() ? "data" : "data.mixture[" + std::to_string(i) + "]";
  }
};

/// The file of samples that the model is evaluated on; no tokens: none.
struct EvaluateRecipe : SourceRecipe {
  int64_t every = 0;               ///< steps between evaluations; 0: after the last step alone
  std::optional<int64_t> samples;  ///< the first so many; none: all
};

struct CheckpointingRecipe {
  std::string mode = "none";  ///< none full selective
  int64_t every = 1;          ///< of so many blocks one, from the first on
};

struct ParameterMetricsRecipe {
  int64_t every = 0;  ///< steps between lines of parameters.jsonl; 0: none
};

/// fp16_mixed: what the start of the backward is multiplied by.
struct LossScaleRecipe {
  std::optional<double> fixed = {};  ///< key `static`: a scale that never changes, instead of all that follows
  double initial = 65536;
  int64_t growth_interval = 2000;  ///< finite steps in a row after which it grows
  double growth_factor = 2;
  double backoff_factor = 0.5;  ///< after a step that was skipped
  double min = 1;
};

struct TrainRecipe {
  int64_t sequence_length = 0;
  int64_t global_batch = 0;
  int64_t micro_batch = 1;
  int64_t steps = 0;
  std::string precision = "fp32";             ///< fp64 fp32 bf16 bf16_mixed fp16_mixed
  std::optional<LossScaleRecipe> loss_scale;  ///< fp16_mixed alone
  bool stochastic_rounding = false;           ///< of what the optimizer changes: bf16 alone
  bool cuda_graph = false;                    ///< a step is recorded once and replayed, where that can be done
  std::string cuda_allocator;                 ///< settings of LibTorch's allocator; empty: its own
  std::string non_finite = "stop";            ///< stop skip: after a step whose loss or gradients are not finite
  int64_t max_skipped = 25;                   ///< in a row
  double clip_norm = 1.0;                     ///< 0: no clipping
  int64_t seed = 42;
  std::vector<std::string> freeze;  ///< globs of the names of parameters that are not trained
  ParameterMetricsRecipe parameter_metrics;
  CheckpointingRecipe activation_checkpointing;
  bool offload_activations = false;     ///< to host memory, where a CPU rank has them anyway
  int64_t log_every = 1;                ///< steps between console lines
  double time_limit = 0;                ///< seconds after which the run stops by itself; 0: none
  std::filesystem::path export_folder;  ///< key `export`: the final weights as a Hugging Face folder; empty: none
};

/// Parameters with settings of their own.
struct GroupRecipe {
  std::string pattern;                 ///< glob of their names
  double learning_rate_factor = 1;     ///< times the learning rate
  std::optional<double> weight_decay;  ///< in the place of the optimizer's; none: that one

  bool operator==(const GroupRecipe&) const = default;
};

struct MuonRecipe {
  std::string scale = "match_rms_adamw";  ///< match_rms_adamw original
  bool nesterov = true;
  int64_t newton_schulz_steps = 5;
  std::optional<double> adamw_learning_rate;  ///< of what is no matrix, embedding and head; none: the learning rate
};

struct OptimizerRecipe {
  std::string name = "adamw";  ///< adamw sgd muon
  double learning_rate = 0;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;        ///< sgd muon
  std::string decay = "all";  ///< all matrices
  MuonRecipe muon;
  std::vector<GroupRecipe> groups;  ///< the first whose pattern matches counts
};

struct ScheduleRecipe {
  std::string name = "constant";  ///< constant cosine linear wsd
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< wsd: length of the final decay
  double min_ratio = 0;     ///< cosine, linear, wsd: last learning rate over the peak
};

struct CheckpointRecipe {
  int64_t every = 0;       ///< steps between checkpoints; 0: none but where the run is stopped
  int64_t keep_last = 0;   ///< the newest so many are kept; 0: all
  int64_t keep_every = 0;  ///< and those of steps that are multiples of this; 0: no others
};

struct Recipe {
  std::string name;  ///< the file's stem
  std::filesystem::path file;
  ModelRecipe model;
  ParallelRecipe parallel;
  DataRecipe data;
  EvaluateRecipe evaluate;
  TrainRecipe train;
  OptimizerRecipe optimizer;
  ScheduleRecipe schedule;
  CheckpointRecipe checkpoint;
  std::string device = "auto";  ///< auto cpu cuda
  /// What messages call a key that the recipe gives, "train.steps": "x.yaml:12:5: train.steps" or
  /// "--set train.steps=20"; under "" the recipe itself, "x.yaml". Empty where no file was read.
  std::map<std::string, std::string> places = {};
};

}  // namespace meshtrain
