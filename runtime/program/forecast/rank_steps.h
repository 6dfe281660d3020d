#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/program/forecast/simulation.h"

namespace meshtrain {

/// Returns the timeline of the same step by another program. It gets one with signatures.
using TimelineChange = std::function<Timeline(const Timeline&)>;

/// The steps of a rank with fewer of the layers, and of the micro-batches, that repeat. Each repetition adds the same
/// memory and traffic.
class RankSteps {
 public:
  /// `machine`: predicts times; null: none. `change`: of the timelines whose times it predicts; empty: none. The
  /// arguments must outlive this.
  RankSteps(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine, int64_t rank,
            const TimelineChange& change);

  int64_t rank() const { return rank_; }
  int64_t micro_batches() const { return count_; }
  /// Returns the most periods of layers that each of the rank's stages can be without; 0 where layers differ.
  int64_t most_removed() const;

  /// Returns the step with `removed` periods of layers fewer in each of the rank's stages.
  StepForecast without(int64_t removed) const;
  /// Returns the step with as few micro-batches as possible, for a comparison of ranks with the same stages.
  StepForecast shortest() const;
  /// Returns the step with all layers. `of_few`: without(most_removed()). Adds layers until the peak grows at least as
  /// fast as the activations that a forward leaves: with few layers the peak may be elsewhere.
  StepForecast complete(StepForecast of_few) const;
  StepForecast complete() const;

  /// Returns the steps from which without() continues, with fewer micro-batches.
  std::vector<StepForecast> simulated(int64_t removed, Recording recording) const {
    return simulated(removed, recording, counts_);
  }

 private:
  std::vector<StepForecast> simulated(int64_t removed, Recording recording, const std::vector<int64_t>& counts) const;
  /// Returns simulated() with the times that the machine predicts, without timelines.
  std::vector<StepForecast> timed(int64_t removed, const std::vector<int64_t>& counts) const;
  /// Returns the layers of the rank's smallest stage.
  int64_t least_layers() const;

  const Decisions& decisions_;
  const ForecastHosts& hosts_;
  const Machine* machine_;
  const TimelineChange& change_;
  int64_t rank_;
  int64_t count_;                // of micro-batches
  std::vector<int64_t> counts_;  // that are simulated: one where there are few, else two
  std::vector<size_t> own_;      // the rank's stages
};

/// Returns true when a step treats all layers of one kind alike. Freezing and adapters may depend on a layer's
/// number, and Muon's work per rank on the number of matrices.
bool repeats_alike(const Decisions& decisions);

/// Returns the period in layers with which the kinds of the model's layers, and their recomputation, repeat.
int64_t kind_period(const Decisions& decisions);

/// Returns the period in layers with which the model's layers and the decisions about them repeat, including the
/// buffers that units reuse.
int64_t layer_period(const Decisions& decisions);

}  // namespace meshtrain
