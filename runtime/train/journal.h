#pragma once

#include <filesystem>
#include <string>

#include "context_parallel/choice.h"
#include "mesh/layout.h"
#include "runtime/config/recipe.h"
#include "runtime/config/sharding.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/run_directory.h"

namespace meshtrain {

/// What one rank writes of a run: its folder, its metrics, its lines on the console.
class Journal {
 public:
  /// Takes `folder` as RunDirectory does and keeps the recipe there, with the sizes that its mesh came to have in
  /// `layout`. Throws InputError when the folder cannot be had, std::runtime_error when it cannot be written.
  Journal(const Recipe& recipe, const MeshLayout& layout, const std::filesystem::path& folder, bool resume);

  /// The lines before the first step. `context`: how attention is cut over cp; `sharding`: parameters over dp.
  void announce(int64_t num_parameters, bool sequence_parallel, const ContextChoice& context,
                const ShardingChoice& sharding) const;
  /// A step: a line of metrics, and one on the console every train.log_every steps and for each that was skipped.
  /// Throws std::runtime_error.
  void record(const StepMetrics& metrics);
  void say(const std::string& line) const;

 private:
  Recipe recipe_;  // as run
  RunDirectory directory_;
  MetricsFile metrics_;
  double seconds_of_steady_steps_ = 0;
};

}  // namespace meshtrain
