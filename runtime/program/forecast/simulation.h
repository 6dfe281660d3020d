#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/traffic.h"
#include "runtime/program/forecast/time_forecast.h"
#include "runtime/program/recipe/decisions.h"

namespace meshtrain {

/// The hosts that a forecast is for.
struct ForecastHosts {
  int64_t ranks_per_host = 1;  ///< ranks r of equal r / ranks_per_host share a host
  bool gpus = false;           ///< tensors are on GPUs; false: on the hosts, whose ranks share memory
};

/// Bytes of a rank at the peak of a step after the first. On a host these are the bytes that HostMemory and
/// WindowMemory count; a copy that ranks share counts with this rank's part.
struct StepMemory {
  int64_t parameters = 0;   ///< shards, and full parameters with permanent memory
  int64_t gathered = 0;     ///< reused memory into which parameters of other ranks are gathered
  int64_t gradients = 0;    ///< full gradients and their shards
  int64_t optimizer = 0;    ///< the optimizer's state
  int64_t activations = 0;  ///< made by forwards
  int64_t temporaries = 0;  ///< made by the backward or the update
  int64_t inputs = 0;       ///< tokens of the step, rotary tables, small tensors
  int64_t exchange = 0;     ///< flags and small tensors in transit, of groups with several ranks on the host

  int64_t total() const {
    return parameters + gathered + gradients + optimizer + activations + temporaries + inputs + exchange;
  }
};

/// Bytes of a rank that are not in its device's memory: of its shards, their gradients and the optimizer's state, and
/// of activations.
struct OffloadForecast {
  int64_t host = 0;                    ///< in pinned memory of the host, activations not included
  int64_t disk = 0;                    ///< on disk
  int64_t to_device = 0, to_host = 0;  ///< copied between host and GPU in a step, activations not included
  int64_t host_activations = 0;        ///< activations in pinned memory of the host
  int64_t copied_activations = 0;      ///< bytes of activations copied in a step, in both directions together

  int64_t copied() const { return to_device + to_host; }
  bool is_empty() const { return host + disk + host_activations == 0; }
};

/// The forecast of a step on one rank.
struct StepForecast {
  StepMemory gradients;  ///< at the peak of forward, backward and sums of gradients
  StepMemory update;     ///< at the peak of the update
  std::map<TrafficLedger::Key, Traffic> traffic;
  std::map<std::string, int> num_hosts = {};  ///< of each group that sends
  OffloadForecast offload = {};
  int64_t before_backward = 0;            ///< bytes when a micro-batch's forward has ended
  double model_flops = 0;                 ///< of a rank: flops_per_token() of the step's tokens, shared out
  Timeline timeline = {};                 ///< when asked for
  std::optional<TimeForecast> time = {};  ///< forecast(): on its machine
  ActionSeconds actions = {};             ///< of a pipeline's rank, on that machine

  /// Returns the bytes that the rank sends in a step.
  int64_t sent_bytes() const {
    int64_t sent = 0;
    for (const auto& [key, each] : traffic) sent += each.sent_bytes;
    return sent;
  }
  const StepMemory& memory() const { return gradients.total() > update.total() ? gradients : update; }
};

/// Returns the least number of micro-batches in a step: with interleaved stages one for each rank of the pipeline.
int64_t least_micro_batches(const Decisions& decisions);

/// The record that simulate() makes of a step's operators and collectives.
enum class Recording { None, Timeline, Signatures };

/// Makes steps of the real trainer on the Meta device, as rank `rank` of a world that does not exist. Returns a
/// forecast of each step after the first: one for each entry of `micro_batches`, with that many micro-batches, in
/// samples of one document. A rank of a pipeline computes its stages, as if the others kept pace. Memory is that of the
/// device's tensors, LibTorch's own temporaries included; on hosts the temporaries are measured on this processor
/// (host_scratch.h). Does not communicate. Throws InputError as TransformerTrainer does.
std::vector<StepForecast> simulate(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                                   const std::vector<int64_t>& micro_batches, Recording recording = Recording::None);

}  // namespace meshtrain
