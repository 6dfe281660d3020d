#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "context_parallel/choice.h"
#include "fsdp/unit_memory.h"
#include "mesh/layout.h"
#include "runtime/config/recipe.h"
#include "runtime/config/sharding.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/run_directory.h"

namespace meshtrain {

/// Of the whole model.
struct ModelSize {
  int64_t num_parameters = 0;
  int64_t num_trainable = 0;
};

/// What one rank writes of a run: its folder, its metrics, its lines on the console.
class Journal {
 public:
  /// Takes `folder` as RunDirectory does and keeps the recipe there, with the sizes that its mesh came to have in
  /// `layout`. Throws InputError when the folder cannot be had, std::runtime_error when it cannot be written.
  Journal(const Recipe& recipe, const MeshLayout& layout, const std::filesystem::path& folder, bool resume);

  /// The lines before the first step. `context`: how attention is cut over cp; `sharding`: parameters over dp, which
  /// lie in `memory`; `disk_bytes`: what this rank keeps on disk.
  void announce(const ModelSize& size, bool sequence_parallel, const ContextChoice& context,
                const ShardingChoice& sharding, const UnitMemory& memory, int64_t disk_bytes) const;
  /// A step: a line of metrics, and one on the console every train.log_every steps and for each that was skipped.
  /// Throws std::runtime_error.
  void record(const StepMetrics& metrics);
  /// The step's parameters, each by itself: a line of parameters.jsonl. Throws std::runtime_error.
  void record(int64_t step, const std::vector<ParameterMetrics>& parameters);
  void say(const std::string& line) const;

 private:
  Recipe recipe_;  // as run
  RunDirectory directory_;
  MetricsFile metrics_;
  std::optional<ParameterMetricsFile> parameters_;  // with train.parameter_metrics
  double seconds_of_steady_steps_ = 0;
};

}  // namespace meshtrain
