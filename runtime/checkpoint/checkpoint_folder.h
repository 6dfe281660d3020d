#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshtrain {

/// Whether `folder` is named as the checkpoint of a step is.
bool has_name_of_step(const std::filesystem::path& folder);

/// A name that no other run has, nor another start of one: 16 hexadecimal digits.
std::string random_id();

/// The result of CheckpointFolder::retire().
struct RetiredCheckpoints {
  std::vector<int64_t> steps;                  ///< whose names it took, or that are absent
  std::vector<std::filesystem::path> folders;  ///< to be removed
  std::string problem;                         ///< why one of the others stays; empty: there is none
};

/// The checkpoints of a run: RUN_DIR/checkpoints, a folder for each step in it. One that bears the name of a step is
/// complete: it was written under another and renamed. Ranks of a host see the same files; hosts may or may not.
/// Functions that list the folder take an absent one as empty. All throw std::runtime_error where the disk fails.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  /// "FOLDER/step-00000012"
  std::filesystem::path step(int64_t step) const;
  /// "FOLDER/step-00000012.ATTEMPT.tmp": where it is written. `attempt`: the random_id() of one start of a run, so that
  /// nothing gets in that a process of another start still writes.
  std::filesystem::path partial(int64_t step, const std::string& attempt) const;

  /// Those that are complete, ascending.
  std::vector<int64_t> steps() const;
  /// "steps 3, 6": of these but the one in folder `but`. Empty when there are no others.
  std::string describe_others(const std::filesystem::path& but) const;

  /// The ids of the runs whose checkpoints these are: one, none where no run has written here. It is the name of an
  /// empty file, "run-ID".
  std::vector<std::string> owners() const;
  /// Makes the folder where it is absent, for run `id`. Durable.
  void claim(const std::string& id) const;

  /// Removes what runs that were killed left behind: folders half written or half removed, of any attempt.
  void clean() const;
  /// Makes partial(step, attempt), where it is absent. The folder around it exists: claim() comes before.
  void begin(int64_t step, const std::string& attempt) const;
  /// partial(step, attempt) becomes step(step), for good. Call once all its files are durable. Nothing is left to
  /// rename when another host, on the same disk, has done so.
  void complete(int64_t step, const std::string& attempt) const;
  /// Puts those of `steps` that are there out of the way, for good, under names "abandoned-step-00000012".
  void abandon(const std::vector<int64_t>& steps) const;
  /// The steps of those that were put out of the way.
  std::vector<int64_t> abandoned() const;
  /// All but the last `keep_last` (0: keeps all) and, where it is not 0, the multiples of `keep_every`.
  std::vector<int64_t> outdated(int64_t keep_last, int64_t keep_every) const;
  /// Takes the names of those of `steps` that are there, for good. Those that cannot be renamed stay.
  RetiredCheckpoints retire(const std::vector<int64_t>& steps, const std::string& attempt) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace meshtrain
