#pragma once

#include <filesystem>

#include "mesh/group.h"
#include "runtime/config/recipe.h"

namespace meshtrain {

/// How a run ended; its value is the exit status.
enum class RunEnd { Done = 0, Stopped = 75 };

struct RunOptions {
  std::filesystem::path run_dir;  ///< empty: runs/<recipe name>
  bool resume = false;
};

/// A whole training run on the ranks of `world`: the recipe's model on the recipe's mesh, step after step, metrics and
/// console lines from rank 0, the final weights exported on request. Every rank calls it with the same recipe.
/// Throws InputError, the same on all ranks, for what is wrong before the first step.
RunEnd run(const Recipe& recipe, const Group& world, const RunOptions& options);

}  // namespace meshtrain
