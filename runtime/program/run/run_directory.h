#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mesh/base/files/file_lock.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// The folder of one run: console.log, metrics.jsonl, events.jsonl, goodput.jsonl, parameters.jsonl if requested,
/// recipe.yaml, decisions.yaml, hosts.json and the checkpoints. Locked while this object lives. Construct on one rank.
/// The kernel releases the lock of a killed run.
class RunDirectory {
 public:
  /// Creates `folder` when it does not exist. Throws InputError when another process uses it, or when it holds a run
  /// and `resume` is false; the folder is unchanged then. Throws std::runtime_error when its checkpoints cannot be
  /// read.
  RunDirectory(std::filesystem::path folder, bool resume);

  /// Throws InputError when `folder` holds a run.
  static void refuse_other_run(const std::filesystem::path& folder);
  /// Returns true for the name of a file or a folder that a run makes in its directory.
  static bool is_own(const std::string& name);
  /// Throws InputError when a run, also one in this process, uses `folder`. Changes nothing.
  static void refuse_use(const std::filesystem::path& folder);

  /// Returns the folder of a run of `recipe`: `asked`; when it is empty, the run whose saved recipe this is, else
  /// runs/<recipe name>.
  static std::filesystem::path folder_of(const Recipe& recipe, const std::filesystem::path& asked);
  const std::filesystem::path& folder() const { return folder_; }
  /// Returns LockFile::warning().
  const std::string& warning() const { return lock_->warning(); }
  std::filesystem::path log() const { return log_of(folder_); }
  static std::filesystem::path log_of(const std::filesystem::path& run) { return run / "console.log"; }
  std::filesystem::path metrics() const { return metrics_of(folder_); }
  static std::filesystem::path metrics_of(const std::filesystem::path& run) { return run / "metrics.jsonl"; }
  static std::filesystem::path events_of(const std::filesystem::path& run) { return run / "events.jsonl"; }
  /// Returns the file with the forecast of a step and the measurements of the first steps.
  static std::filesystem::path forecast_of(const std::filesystem::path& run) { return run / "forecast.json"; }
  std::filesystem::path goodput() const { return folder_ / "goodput.jsonl"; }
  std::filesystem::path parameter_metrics() const { return folder_ / "parameters.jsonl"; }
  std::filesystem::path tensorboard() const { return folder_ / "tensorboard"; }
  std::filesystem::path traces() const { return traces_of(folder_); }
  static std::filesystem::path traces_of(const std::filesystem::path& run) { return run / "traces"; }
  std::filesystem::path checkpoints() const { return checkpoints_of(folder_); }
  static std::filesystem::path checkpoints_of(const std::filesystem::path& run) { return run / "checkpoints"; }
  /// Renames the files of a run that an older version began. Files that cannot be renamed stay as they are.
  void rename_older_files() const;
  /// Writes recipe.yaml, the recipe as run; decisions.yaml, its decisions; and hosts.json, the name of each rank's
  /// host. Throws as OutputFile does.
  void write(const std::string& recipe, const std::string& decisions, const std::vector<std::string>& hosts) const;

 private:
  std::filesystem::path folder_;
  std::optional<LockFile> lock_;
};

}  // namespace meshtrain
