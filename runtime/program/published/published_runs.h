#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/forecast/time_forecast.h"
#include "runtime/program/published/rates.h"
#include "runtime/program/published/table.h"
#include "runtime/program/recipe/documented.h"

namespace meshtrain {

/// A published run and its prediction.
struct PublishedForecast {
  PublishedRun run;
  int64_t micro_batch = 0, micro_batches = 0;  ///< as stated, or chosen (docs/plan.md)
  std::string software;                        ///< Software::name
  TimeForecast time;
  std::optional<double> measured_seconds = {};  ///< of a step
  double memory = 0;                            ///< bytes at the peak
  int64_t device_memory = 0;                    ///< bytes of its GPU

  double tokens_per_gpu() const;  ///< of a step
  bool fits() const;
  bool ran() const;  ///< false: it is known to have run out of memory
  /// Return the relative errors, predicted over measured minus 1; none where nothing was measured.
  std::optional<double> time_error() const;
  std::optional<double> memory_error() const;
};

/// How well runs were predicted. Errors are relative.
struct PublishedScore {
  int64_t rows = 0;
  double time_error_mean = 0;  ///< of absolute errors
  double time_error_worst = 0;
  double kendall_tau_mean = 0;  ///< of GPU seconds a token, over sources with several measured rows
  double memory_error_mean = 0;
  int64_t out_of_memory_named = 0, out_of_memory_total = 0;
  int64_t fitting_refused = 0;  ///< runs that ran and are predicted not to fit
};

/// Published runs, simulated once and predicted as often as asked for.
class PublishedRuns {
 public:
  /// Throws InputError with the row when one could not be trained.
  explicit PublishedRuns(const std::vector<PublishedRun>& runs);
  ~PublishedRuns();
  PublishedRuns(const PublishedRuns&) = delete;
  PublishedRuns& operator=(const PublishedRuns&) = delete;

  /// Returns the predictions with `rates` times those of sourced_machine().
  std::vector<PublishedForecast> predict(const Rates& rates) const;
  /// Returns the predictions of each source with the rates that were fitted on all other sources; with the presets'
  /// where there are no others.
  std::vector<PublishedForecast> predict_each_from_others() const;
  /// Returns the rates that explain all runs best.
  Rates fitted() const;

 private:
  struct Candidate;

  std::vector<Candidate> candidates_;
  std::vector<RateObservation> observations_;  // of candidates with a time
};

/// Returns a run as `recipe`, whose name in lists is `name`, and its section `documented` describe it, on its own mesh.
/// `documented.hardware` names the machine; without one it is an H100.
PublishedRun run_of(const std::string& name, const Recipe& recipe, const DocumentedRun& documented);

/// Returns the prediction of one run, pipelines and experts among them, with `rates` times those of sourced_machine().
/// Throws InputError when the run could not be trained.
PublishedForecast predict(const PublishedRun& run, const Rates& rates);

PublishedScore score_of(const std::vector<PublishedForecast>& forecasts);

/// Returns Kendall's tau b of two series of the same length, at least two; 0 when one of them is constant.
double kendall_tau(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace meshtrain
