#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/program/report/series.h"

namespace meshtrain {

/// A step that updated nothing.
struct SkippedStep {
  int64_t step = 0;
  std::string parameter;     ///< the first whose gradient was not finite, or why there is none; may be empty
  std::string outlier = {};  ///< "loss", "grad_norm" or "loss and grad_norm" when one was an outlier
};

/// The content of a metrics.jsonl. Every number of a line is a series under its path, "loss" or
/// "seconds.collectives.dp.exposed"; null is a value that is not finite. Lines of older versions lack keys, those of
/// newer ones have others.
class MetricsReader {
 public:
  static constexpr int64_t kMostSkipped = 1000;

  /// Reads a line. One that is damaged or has no step is counted and changes nothing.
  void add(std::string_view line);

  /// Returns the series of `path`; an empty one when no line has it.
  const Series& operator[](std::string_view path) const;
  const std::map<std::string, Series, std::less<>>& series() const { return series_; }
  /// Returns what stands at `*` in the paths `before` * `after`, sorted: the axes in "bytes." * "".
  std::vector<std::string> between(std::string_view before, std::string_view after) const;

  int64_t num_damaged() const { return num_damaged_; }
  int64_t last_step() const { return last_step_; }
  int64_t num_skipped() const { return num_skipped_; }
  /// Returns how many of the skipped steps were outliers.
  int64_t num_outliers() const { return num_outliers_; }
  /// Returns the first kMostSkipped of the skipped steps.
  const std::vector<SkippedStep>& skipped() const { return skipped_; }

 private:
  std::map<std::string, Series, std::less<>> series_;
  std::vector<SkippedStep> skipped_;
  int64_t num_damaged_ = 0;
  int64_t num_skipped_ = 0;
  int64_t num_outliers_ = 0;
  int64_t last_step_ = 0;
};

}  // namespace meshtrain
