#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mesh/group.h"
#include "runtime/program/forecast/machine.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/program/run/stop_request.h"

namespace meshtrain {

/// The end of a run; the value is the exit status.
enum class RunEnd { Done = 0, Stopped = 75 };

struct RunOptions {
  std::filesystem::path run_dir;            ///< empty: runs/<recipe name>
  bool resume = false;                      ///< resume from the newest checkpoint, if there is one
  std::optional<int64_t> resume_step = {};  ///< resume from the checkpoint of this step
  std::string note = {};                    ///< a line that the log of this start begins with; empty: none
  /// The machine that steps are predicted for; null: their times are not.
  std::shared_ptr<const Machine> machine = {};
  /// Called with the error that ends the run, before run() waits for checkpoints in progress and rethrows the error.
  std::function<void(const std::exception&)> on_failure = {};

  bool resumes() const { return resume || resume_step; }
};

/// Trains the recipe's model on the recipe's mesh over the ranks of `world`: steps, metrics and console lines from rank
/// 0, checkpoints, and an export of the final weights if requested. Every rank calls it with the same recipe. Resumes
/// from a checkpoint of any mesh if requested. Ends after the step in which `stop_request` is seen; an earlier request
/// takes effect after the first step.
///
/// Throws InputError, the same on all ranks, for errors found before the first step.
RunEnd run(const Recipe& recipe, const Group& world, const RunOptions& options, const StopRequest& stop_request);

}  // namespace meshtrain
