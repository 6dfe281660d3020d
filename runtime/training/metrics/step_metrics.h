#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace meshtrain {

/// The result of an evaluation on held-out samples.
struct EvaluationMetrics {
  double loss = 0;     ///< mean over counted tokens
  int64_t tokens = 0;  ///< counted tokens
  double seconds = 0;  ///< duration; not part of a step's time
};

/// The most bytes that one rank has had so far, and which.
struct PeakMetrics {
  int64_t bytes = 0;
  int64_t rank = 0;
};

/// What the collectives of one group's name have cost a rank in a step: means over ranks.
struct CollectiveMetrics {
  double total = 0;               ///< seconds from start to end, summed over collectives, which may run side by side
  std::optional<double> exposed;  ///< seconds that the host waited for them; none for those of a GPU
  double sent_bytes = 0;          ///< Traffic::sent_bytes
};

/// Copies of what is offloaded between a GPU and its host in a step: means over ranks.
struct CopyMetrics {
  double to_device = 0, to_host = 0;  ///< bytes
  double exposed = 0;                 ///< seconds for which a GPU had no work until a copy ended
};

/// The experts' shares of a step's tokens, all layers and ranks together.
struct ExpertMetrics {
  /// The balancing loss without its coefficient, mean over the step and, unless it joins layers, over layers; none: it
  /// is not computed.
  std::optional<double> balance_loss = {};
  std::optional<double> z_loss =
      {};                ///< mean over tokens and layers, without its coefficient; none: it is not computed
  double load_max = 0;   ///< in the worst layer: rows of its fullest expert over the mean of its experts
  double load_mean = 0;  ///< mean of that over layers
  int64_t unused = 0;    ///< number of experts without a token in the step
  std::optional<int64_t> dropped = {};  ///< choices of tokens beyond a capacity; none: there is no capacity
};

/// Where the time of a step went: means over ranks, in seconds. What is not in the parts is forward and backward.
struct SecondsMetrics {
  double data = 0;                  ///< waiting for samples
  std::optional<double> optimizer;  ///< without collectives; none where a GPU computes it
  double checkpoint = 0;            ///< that steps waited for a checkpoint
};

/// The measurements of one step.
struct StepMetrics {
  int64_t step = 0;      ///< from 1
  double loss = 0;       ///< mean over counted tokens
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  ///< tokens seen so far, this step's included
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> loss_scale = {};     ///< under fp16_mixed: of this step's backward
  std::optional<double> z_loss = {};         ///< of the logits: mean over counted tokens, without its coefficient
  std::optional<int64_t> global_batch = {};  ///< samples of this step, when the batch grows
  bool skipped = false;                      ///< nothing was updated: not finite, an outlier, or no label counts
  std::string outlier = {};                  ///< when skipped: "loss", "grad_norm" or "loss and grad_norm", an outlier
  std::string non_finite = {};  ///< when skipped: the first parameter with a gradient that is not finite, if any
  std::string no_label = {};    ///< when skipped because none of its labels counts: the samples of the step
  std::optional<EvaluationMetrics> evaluation = {};  ///< present when the model was evaluated after this step
  double time = 0;                                   ///< of the end of the step, in seconds since 1970
  int64_t counted_tokens = 0;                        ///< labels of this step that count
  double loss_max = 0;                               ///< the largest over ranks of the mean over the rank's own labels
  double flops_per_rank = 0;                         ///< model FLOP/s of a rank
  std::optional<double> mfu = {};  ///< flops_per_rank / train.device_flops; none when that is not known
  PeakMetrics host_memory = {};
  std::optional<PeakMetrics> device_allocated = {}, device_reserved = {};  ///< on a GPU
  SecondsMetrics seconds = {};
  std::map<std::string, CollectiveMetrics> collectives = {};  ///< by the name of their group: "dp", "tp", "dp_cp"
  std::optional<CopyMetrics> copies = {};                     ///< with offload on GPUs
  std::optional<ExpertMetrics> experts = {};                  ///< of a model with experts, unless no label counts
};

/// The measurements of one parameter in one step: norms of the complete tensor.
struct ParameterMetrics {
  std::string name;
  double grad_norm = 0;    ///< before clipping
  double weight_norm = 0;  ///< after the update
  double update_norm = 0;  ///< of the change by the update
};

}  // namespace meshtrain
