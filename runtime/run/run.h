#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>

#include "mesh/group.h"
#include "mesh/layout.h"
#include "runtime/recipe/recipe.h"
#include "runtime/run/stop_request.h"

namespace meshtrain {

/// How a run ended; its value is the exit status.
enum class RunEnd { Done = 0, Stopped = 75 };

struct RunOptions {
  std::filesystem::path run_dir;            ///< empty: runs/<recipe name>
  bool resume = false;                      ///< from the newest checkpoint, if there is one
  std::optional<int64_t> resume_step = {};  ///< from the checkpoint of this step
  /// Called with what ends the run while checkpoints may still be written or removed, which is waited for before it is
  /// thrown on.
  std::function<void(const std::exception&)> on_failure = {};

  bool resumes() const { return resume || resume_step; }
};

/// `asked`, with the sizes that its mesh has in `layout`.
Recipe as_run(Recipe asked, const MeshLayout& layout);

/// A whole training run on the ranks of `world`: the recipe's model on the recipe's mesh, step after step, metrics and
/// console lines from rank 0, checkpoints, the final weights exported on request. Every rank calls it with the same
/// recipe. Goes on from a checkpoint, of whatever mesh, when it is asked to resume. Ends after the step in which
/// `stop_request` is seen; one that came before waits for the first step.
/// Throws InputError, the same on all ranks, for what is wrong before the first step.
RunEnd run(const Recipe& recipe, const Group& world, const RunOptions& options, const StopRequest& stop_request);

}  // namespace meshtrain
