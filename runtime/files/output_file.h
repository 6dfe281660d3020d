#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace meshtrain {

/// What the system keeps in memory of a file that has been written.
enum class PageCache {
  Kept,     ///< as much as it likes: for what is read soon
  Dropped,  ///< little: what is written goes to the disk at once and out of memory. For large files, which would take
            ///< the place of what is in use, and fresh pages for each of which cost more than writing does
};

/// A file that appears under its name complete or not at all: written beside it as NAME.partial, made durable and
/// renamed by finish(). A file of that name is replaced. NAME.partial is locked, so that two processes do not write one
/// file, as far as the file system's locks reach; where it has none each has a NAME.partial-XXXXXX of its own.
class OutputFile {
 public:
  /// Makes no folders: in one that has vanished meanwhile a new file would stand alone. Throws InputError when no file
  /// can be created there (no such folder, no permission) and when another process is writing it, std::runtime_error
  /// when the disk fails.
  explicit OutputFile(std::filesystem::path path, PageCache cache = PageCache::Kept);
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
  /// Bytes [begin, end) of the file.
  struct Stretch {
    int64_t begin = 0, end = 0;
  };

  /// Opens partial_, empty and for this process alone.
  void open_partial();
  /// Hands what was written to the disk, stretch by stretch.
  void pass_on(Stretch written);
  [[noreturn]] void fail(int error);
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  PageCache cache_;
  int descriptor_ = -1;
  int64_t end_ = 0;       // where append() goes on
  Stretch in_memory_;     // PageCache::Dropped: the last that was written,
  Stretch on_their_way_;  // and before it what the disk is writing
};

/// Writes a file that has `text` alone. Throws as OutputFile.
void write_whole(const std::filesystem::path& path, const std::string& text);

/// Throws std::runtime_error unless `path` is a file of so many bytes.
void expect_file(const std::filesystem::path& path, size_t bytes);

/// True for the errors by which a file system answers that it lacks an operation, of those that make data durable. Such
/// a file system keeps data in other ways; any other error is one of the disk.
bool is_unsupported(int error);

/// Makes renames and new files in `folder` durable. Throws std::runtime_error.
void sync_folder(const std::filesystem::path& folder);

/// Creates `folder` and those above it, as far as they are absent, durably. Throws as OutputFile.
void make_folders(const std::filesystem::path& folder);

}  // namespace meshtrain
