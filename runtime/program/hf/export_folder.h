#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "mesh/base/files/file_lock.h"

namespace meshtrain {

/// The folder that an export makes. It is written as FOLDER.partial beside it and renamed when it is complete. A
/// FOLDER.partial that has model.safetensors or its index, or adapter_model.safetensors, is complete: these are written
/// last, and are durable when they appear. Such a folder is never removed here, as it may be all that is left of a
/// training. One process uses it.
class ExportFolder {
 public:
  /// `asked`: the path of the folder. A link at its end is followed, also to a folder that does not exist. Throws
  /// InputError when the links form a circle.
  explicit ExportFolder(const std::filesystem::path& asked);

  /// Returns the absolute path, links resolved.
  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& partial() const { return partial_; }
  /// Returns "models/mine", or "models/mine, a link to /disk/mine".
  const std::string& text() const { return text_; }

  /// Tries the operations of an export. Throws InputError when the export could not be finished: the folder is a file,
  /// is not empty, is a mount point, or cannot be made; FOLDER.partial is complete, is being written by another
  /// process, or has files that no export writes. Changes nothing that exists.
  void check() const;

  /// Makes FOLDER.partial, empty and locked, replacing what a killed export left. Throws InputError as check(),
  /// std::runtime_error when the disk fails.
  void begin();
  /// Renames FOLDER.partial, in which every file must be durable, to FOLDER, durably. Throws std::runtime_error when
  /// the system refuses; FOLDER.partial then stays.
  void complete();
  /// Removes the FOLDER.partial that begin() has made.
  void discard() noexcept;

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  void check_partial() const;
  void try_rename() const;

  std::filesystem::path folder_;
  std::filesystem::path partial_;
  std::filesystem::path existing_;  // the nearest folder above folder_ that existed before begin()
  std::string text_;
  std::optional<LockFile> lock_;
};

}  // namespace meshtrain
