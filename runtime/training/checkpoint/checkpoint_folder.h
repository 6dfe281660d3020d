#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshtrain {

/// Returns true when `folder` has the name of a step's checkpoint.
bool has_name_of_step(const std::filesystem::path& folder);

/// Returns a name that no other run has, nor another start of one: 16 hexadecimal digits.
std::string random_id();

/// The result of CheckpointFolder::retire().
struct RetiredCheckpoints {
  std::vector<int64_t> steps;                  ///< the steps that have no folder of their name any more
  std::vector<std::filesystem::path> folders;  ///< the renamed folders, which are to be removed
  std::string problem;                         ///< why one of the others could not be renamed; empty: all were
};

/// The checkpoints of a run: RUN_DIR/checkpoints, with a folder for each step. A folder with the name of a step is
/// complete: it was written under another name and renamed. Ranks of a host see the same files; hosts may or may not.
/// Functions that list the folder treat an absent one as empty. All throw std::runtime_error when the disk fails.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  /// Returns "FOLDER/step-00000012".
  std::filesystem::path step(int64_t step) const;
  /// Returns "FOLDER/step-00000012.ATTEMPT.tmp", the folder in which the checkpoint is written. `attempt`: the
  /// random_id() of one start of a run, so that files which a process of another start still writes do not end up in
  /// it.
  std::filesystem::path partial(int64_t step, const std::string& attempt) const;

  /// Returns the steps of complete checkpoints, ascending.
  std::vector<int64_t> steps() const;
  /// Returns "steps 3, 6": these steps without the one in folder `but`. Empty when there are no others.
  std::string describe_others(const std::filesystem::path& but) const;

  /// Returns the ids of the runs that own these checkpoints: one, or none when no run has written here. An id is the
  /// name of an empty file, "run-ID".
  std::vector<std::string> owners() const;
  /// Makes the folder if it is absent, for run `id`. Durable.
  void claim(const std::string& id) const;

  /// Removes what runs that were killed left behind: folders half written or half removed, of any attempt.
  void clean() const;
  /// Makes partial(step, attempt) if it is absent. Call claim() before, which makes the folder around it.
  void begin(int64_t step, const std::string& attempt) const;
  /// Renames partial(step, attempt) to step(step), durably. Call it once all files are durable, or a crash may leave a
  /// damaged checkpoint under a name that says it is complete. Does nothing when another host, on the same disk, has
  /// renamed it.
  void complete(int64_t step, const std::string& attempt) const;
  /// Renames those of `steps` that exist to "abandoned-step-00000012", durably. Returns their new paths.
  std::vector<std::filesystem::path> abandon(const std::vector<int64_t>& steps) const;
  /// Returns the steps that abandon() has renamed.
  std::vector<int64_t> abandoned() const;
  /// Returns all steps but the last `keep_last` (0: keeps all) and, if it is not 0, the multiples of `keep_every`.
  std::vector<int64_t> outdated(int64_t keep_last, int64_t keep_every) const;
  /// Renames those of `steps` that exist, durably, so that they are no checkpoints any more. Those that cannot be
  /// renamed stay.
  RetiredCheckpoints retire(const std::vector<int64_t>& steps, const std::string& attempt) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace meshtrain
