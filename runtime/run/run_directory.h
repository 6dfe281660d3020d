#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/files/file_lock.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// The folder of one run: log.txt, metrics.jsonl, parameters.jsonl on request, recipe.yaml, plan.yaml and its
/// checkpoints. Locked as long as this lives. Of one rank; the lock is the kernel's, so a run that was killed leaves
/// none behind.
class RunDirectory {
 public:
  /// Creates `folder` where it is absent. Throws InputError when it is in use by another process, or holds a run while
  /// `resume` is false: it is then left as it was; std::runtime_error when its checkpoints cannot be read.
  RunDirectory(std::filesystem::path folder, bool resume);

  /// Where a run of `recipe` has its folder: `asked`, or runs/<recipe name> when that is empty.
  static std::filesystem::path folder_of(const Recipe& recipe, const std::filesystem::path& asked);
  const std::filesystem::path& folder() const { return folder_; }
  /// LockFile::warning().
  const std::string& warning() const { return lock_->warning(); }
  std::filesystem::path log() const { return folder_ / "log.txt"; }
  std::filesystem::path metrics() const { return metrics_of(folder_); }
  static std::filesystem::path metrics_of(const std::filesystem::path& run) { return run / "metrics.jsonl"; }
  std::filesystem::path parameter_metrics() const { return folder_ / "parameters.jsonl"; }
  std::filesystem::path checkpoints() const { return checkpoints_of(folder_); }
  static std::filesystem::path checkpoints_of(const std::filesystem::path& run) { return run / "checkpoints"; }
  /// Keeps the recipe as run, recipe.yaml, and what was decided from it, plan.yaml. Throws as OutputFile.
  void write(const std::string& recipe, const std::string& plan) const;

 private:
  std::filesystem::path folder_;
  std::optional<LockFile> lock_;
};

}  // namespace meshtrain
