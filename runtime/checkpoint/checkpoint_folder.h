#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// Whether `folder` is named as the checkpoint of a step is.
bool has_name_of_step(const std::filesystem::path& folder);

/// The checkpoints of a run: RUN_DIR/checkpoints, a folder for each step in it. One that bears the name of a step is
/// complete: it was written under another and renamed. Ranks of a host see the same files; hosts may or may not.
/// Functions that list the folder take an absent one as empty and throw std::runtime_error when it cannot be read.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  /// "FOLDER/step-00000012"
  std::filesystem::path step(int64_t step) const;
  /// "FOLDER/step-00000012.tmp": where it is written.
  std::filesystem::path partial(int64_t step) const;

  /// Those that are complete, ascending.
  std::vector<int64_t> steps() const;
  /// "steps 3, 6": of these but the one in folder `but`. Empty when there are no others.
  std::string describe_others(const std::filesystem::path& but) const;

  /// Removes what runs that were killed left behind: folders half written or half removed.
  void clean() const;
  /// partial(step) becomes step(step), for good. Nothing when another rank has done so already. Throws
  /// std::runtime_error.
  void complete(int64_t step) const;
  /// Those of steps after `step` are put out of the way, under names "abandoned-step-00000012": a run that goes on from
  /// `step` will make others. Returns whether there were any.
  bool abandon_after(int64_t step) const;
  /// Takes the names of all but the last `keep_last` (0: keeps all) and, where it is not 0, the multiples of
  /// `keep_every`, and returns the folders that are to be removed.
  std::vector<std::filesystem::path> retire(int64_t keep_last, int64_t keep_every) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace meshtrain
