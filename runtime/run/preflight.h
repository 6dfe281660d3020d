#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/recipe/run_plan.h"

namespace meshtrain {

/// Checks, without changing anything, that a run directory can be made or continued: as RunDirectory's constructor, and
/// that this process may write there. Throws InputError.
void check_run_directory(const std::filesystem::path& folder, bool resume);

/// Returns the bytes of a checkpoint's tensors: weights as they are kept, and the optimizer's state.
int64_t checkpoint_bytes(const Recipe& recipe, const RunPlan& plan);

/// Looks at what a run will need of the machine that this process is on: the disk for checkpoints in `run_directory`,
/// memory as the plan of a step predicts it, GPUs. Returns lines for people; those that begin with "warning: " name
/// what is not enough. `device_memory`: of a rank's GPU, where it is known; else 0. Throws InputError when not even one
/// checkpoint fits on the disk.
std::vector<std::string> look_ahead(const Recipe& recipe, const RunPlan& plan,
                                    const std::filesystem::path& run_directory, int64_t device_memory);

/// Returns, in one line, what only the ranks of a run can find out.
std::string not_checked(const Recipe& recipe, const RunPlan& plan);

}  // namespace meshtrain
