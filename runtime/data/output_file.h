#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace meshtrain {

/// A file that appears under its name whole or not at all: written beside it as NAME.partial, made durable and
/// renamed by finish(). A file of that name is replaced.
class OutputFile {
 public:
  /// Throws InputError when no file can be created there (no such folder, no permission), std::runtime_error when the
  /// disk fails.
  explicit OutputFile(std::filesystem::path path);
  /// Removes what was written unless finish() was reached.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Each of these throws std::runtime_error with the file and the system's reason (a full disk) after removing what
  /// was written; the file is then closed for good.
  void append(const void* data, size_t bytes);
  void write_at(int64_t offset, const void* data, size_t bytes);
  void finish();

  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail(int error);
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int descriptor_ = -1;
  int64_t end_ = 0;  // where append() goes on
};

/// Writes a file that has `text` alone. Throws as OutputFile.
void write_whole(const std::filesystem::path& path, const std::string& text);

/// Makes renames and new files in `folder` durable. Throws std::runtime_error.
void sync_folder(const std::filesystem::path& folder);

}  // namespace meshtrain
