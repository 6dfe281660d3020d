#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/program/plan/planned_mesh.h"
#include "runtime/program/recipe/run_plan.h"
#include "runtime/program/telemetry/notice.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"

namespace meshtrain {

/// Checks, without changing anything, that a run directory can be made or continued: as RunDirectory's constructor, and
/// that this process may write there. Throws InputError.
void check_run_directory(const std::filesystem::path& folder, bool resume);

/// Checks, without changing anything, that the weights can be exported to train.export. Throws InputError as
/// check_export_folder() does, when the run directory `run` or the offload's folder overlaps with that folder, and when
/// a file to carry over cannot be read. Does nothing without train.export.
void check_export(const Recipe& recipe, const std::filesystem::path& run);

/// Throws InputError when the folder of parallel.fsdp.offload.path, if shards are offloaded to disk, cannot be made.
void check_offload(const Recipe& recipe, const RunPlan& plan);

/// Returns a line that compares the checkpoints which a run writes after step `done` with their disk; a warning when
/// not all fit, empty when the run writes none. Throws InputError when not even one fits, divided over the disks of
/// `num_hosts` hosts.
Notice disk_notice(const Recipe& recipe, const RunPlan& plan, const CheckpointFolder& checkpoints, int64_t done,
                   int64_t num_hosts);

/// A comparison of the memory of a step with what there is.
struct MemoryNotice {
  std::string text;  ///< one line; empty when nothing is to be said
  bool is_warning = false;
};

/// Compares the `needed` bytes of a rank's step with what there is. `measured`: request.memory is what ranks have now,
/// and nothing is said when it suffices. Otherwise with a GPU as `request` knows it, or with the host that this process
/// is on; throws InputError when a step needs over a tenth more than a GPU has, which is beyond what the forecast of
/// memory may be off by (docs/plan.md).
MemoryNotice memory_notice(const Recipe& recipe, const RunPlan& plan, PlanRequest request, int64_t needed,
                           bool measured);

/// Returns memory_remedies(), an empty text where there is no plan. Throws nothing.
std::string less_memory(const Recipe& recipe, const MeshLayout& layout, const PlanRequest& request);

/// Returns, in one line, what only the ranks of a run can find out.
std::string not_checked(const Recipe& recipe, const RunPlan& plan);

}  // namespace meshtrain
