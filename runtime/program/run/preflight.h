#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/program/forecast/mesh_forecast.h"
#include "runtime/program/recipe/decisions.h"
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

/// Throws InputError when shards are offloaded to disk and the folder of parallel.fsdp.offload.path cannot be made.
void check_offload(const Recipe& recipe, const Decisions& decisions);

/// Returns a line that compares the checkpoints after step `done` with the free space of their disk: a warning when not
/// all fit, empty when no step is left or the free space is unknown. Throws InputError when not even one fits, divided
/// over the disks of `num_hosts` hosts, in a run directory without checkpoints: a start removes unfinished ones.
Notice disk_notice(const Recipe& recipe, const Decisions& decisions, const CheckpointFolder& checkpoints, int64_t done,
                   int64_t num_hosts);

/// A comparison of the memory that a step needs with the memory that exists.
struct MemoryNotice {
  std::string text;  ///< one line; empty when measured memory suffices
  bool is_warning = false;
};

/// Compares the `needed` bytes of a rank's step with the memory that exists. `measured`: request.memory is the memory
/// that ranks have now, and the text is empty when it suffices. Otherwise compares with the GPU that `request`
/// describes, or with the host of this process. Throws InputError when a step needs over a tenth more than a GPU has;
/// the forecast is off by less than that (docs/plan.md).
MemoryNotice memory_notice(const Recipe& recipe, const Decisions& decisions, ForecastRequest request, int64_t needed,
                           bool measured);

/// Throws InputError when `ranks` x `each` > `free`. `each`: bytes that a rank offloads to its host. `ranks`: number of
/// ranks on the host. `free`: free bytes of the host's memory.
void check_offload_memory(int64_t each, int64_t ranks, int64_t free);

/// Returns memory_remedies(), or an empty text when no forecast is possible. Throws nothing.
std::string less_memory(const Recipe& recipe, const MeshLayout& layout, const ForecastRequest& request);

/// Returns, in one line, what only the ranks of a run can find out.
std::string not_checked(const Recipe& recipe, const Decisions& decisions);

}  // namespace meshtrain
