#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/forecast.h"
#include "runtime/plan/machine.h"
#include "runtime/plan/planned_mesh.h"
#include "runtime/recipe/run_plan.h"

namespace meshtrain {

/// Checks, without changing anything, that a run directory can be made or continued: as RunDirectory's constructor, and
/// that this process may write there. Throws InputError.
void check_run_directory(const std::filesystem::path& folder, bool resume);

/// Checks, without changing anything, that the weights can be exported to train.export. Throws InputError as
/// check_export_folder() does, when the run directory `run` or the offload's folder overlaps with that folder, and when
/// a file to carry over cannot be read. Does nothing without train.export.
void check_export(const Recipe& recipe, const std::filesystem::path& run);

/// Returns the bytes of a checkpoint's tensors: weights as they are kept, and the optimizer's state.
int64_t checkpoint_bytes(const Recipe& recipe, const RunPlan& plan);

/// The result of look_ahead().
struct Outlook {
  std::vector<std::string> lines;       ///< for people; those that begin with "warning: " name what is not enough
  std::optional<RunForecast> forecast;  ///< of a step; none when it could not be predicted
  std::string basis;                    ///< what the forecast takes for granted: basis_text()
};

/// Looks at what a run will need of the machine that this process is on: the disk for checkpoints in `run_directory`,
/// memory as the plan of a step predicts it, GPUs. `machine`: what steps take time and have
/// memory on; null: not known. Throws InputError when not even one checkpoint fits on the disk, and when a step needs
/// over a tenth more than a GPU has, which is beyond what the forecast of memory may be off by (docs/plan.md).
Outlook look_ahead(const Recipe& recipe, const RunPlan& plan, const std::filesystem::path& run_directory,
                   const std::shared_ptr<const Machine>& machine);

/// Returns memory_remedies(), an empty text where there is no plan. Throws nothing.
std::string less_memory(const Recipe& recipe, const MeshLayout& layout, const PlanRequest& request);

/// Returns, in one line, what only the ranks of a run can find out.
std::string not_checked(const Recipe& recipe, const RunPlan& plan);

}  // namespace meshtrain
