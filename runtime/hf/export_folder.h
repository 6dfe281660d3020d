#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/files/file_lock.h"

namespace meshtrain {

/// The folder that an export makes. It is written beside its place as FOLDER.partial and renamed when it is complete.
/// FOLDER.partial with model.safetensors or its index is complete: these are written last, and are durable by then.
/// Such a folder is never removed here, as it may be all that is left of a training. One process.
class ExportFolder {
 public:
  /// `asked`: where the folder shall be. Links at its end are followed, to a folder that may be absent. Throws
  /// InputError when they lead in a circle.
  explicit ExportFolder(const std::filesystem::path& asked);

  /// Absolute, no link.
  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& partial() const { return partial_; }
  /// "models/mine", or "models/mine, a link to /disk/mine".
  const std::string& text() const { return text_; }

  /// Tries what an export does. Throws InputError when it could not be finished: the folder is a file, is not empty, is
  /// a mount point, or cannot be made; FOLDER.partial is complete, is being written by another process, or has files
  /// that no export writes. Changes nothing that was there.
  void check() const;

  /// Makes FOLDER.partial, empty and locked, in place of what a killed export left. Throws InputError as check(),
  /// std::runtime_error when the disk fails.
  void begin();
  /// Gives FOLDER.partial, in which every file is durable, the name FOLDER, for good. Throws std::runtime_error when
  /// the system refuses; FOLDER.partial then stays.
  void complete();
  /// Removes FOLDER.partial of begin().
  void discard() noexcept;

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  void check_partial() const;
  void try_rename() const;

  std::filesystem::path folder_;
  std::filesystem::path partial_;
  std::filesystem::path existing_;  // above folder_, by begin()
  std::string text_;
  std::optional<LockFile> lock_;
};

}  // namespace meshtrain
