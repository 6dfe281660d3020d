#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace meshtrain {

/// The part of a written file that the system keeps in its page cache.
enum class PageCache {
  Kept,     ///< as much as the system likes: for files that are read again soon
  Dropped,  ///< little: written data goes to the disk at once and is evicted. For large files, which would otherwise
            ///< evict data in use; allocating a fresh page for each part also costs more than writing it
};

/// A file that appears under its name complete or not at all: it is written as NAME.partial beside it, and finish()
/// makes it durable and renames it, replacing any file of that name. NAME.partial is locked so that two processes do
/// not write the same file, as far as the file system's locks reach; on a file system without locks each process writes
/// a NAME.partial-XXXXXX of its own.
class OutputFile {
 public:
  /// Opens the partial file. Creates no folders: one that has vanished meanwhile must not come back with this file
  /// alone. Throws InputError when no file can be created there (no such folder, no permission) and when another
  /// process is writing it, std::runtime_error when the disk fails.
  explicit OutputFile(std::filesystem::path path, PageCache cache = PageCache::Kept);
  /// Removes the partial file unless finish() has succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Each of these throws std::runtime_error with the file's name and the system's reason (a full disk) after removing
  /// the partial file; the file is then closed, and no function may be called any more.
  void append(const void* data, size_t bytes);
  void write_at(int64_t offset, const void* data, size_t bytes);
  /// Makes the partial file durable. finish() then renames it and has nothing else to wait for: files that belong
  /// together are synced one after the other and then finished.
  void sync();
  void finish();

  const std::filesystem::path& path() const { return path_; }

 private:
  /// Bytes [begin, end) of the file.
  struct Stretch {
    int64_t begin = 0, end = 0;
  };

  /// Opens partial_, empty and for this process alone.
  void open_partial();
  /// Starts writing a stretch to the disk once it is long enough, waits for the stretch before it and evicts that one.
  void pass_on(Stretch written);
  [[noreturn]] void fail(int error);
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  PageCache cache_;
  int descriptor_ = -1;
  bool is_synced_ = false;
  int64_t end_ = 0;       // offset of the next append()
  Stretch in_memory_;     // PageCache::Dropped: the stretch written last,
  Stretch on_their_way_;  // and the one before it, which the disk is writing
};

/// Writes `text` as the file `path`. Throws as OutputFile does.
void write_atomically(const std::filesystem::path& path, const std::string& text);

/// Throws std::runtime_error unless `path` is a file of `bytes` bytes.
void expect_file(const std::filesystem::path& path, size_t bytes);

/// Returns true for errors that mean that the file system lacks one of the operations that make data durable. Such a
/// file system keeps data in other ways; any other error is a failure of the disk.
bool is_unsupported(int error);

/// Makes renames and new files in `folder` durable. Throws std::runtime_error.
void sync_folder(const std::filesystem::path& folder);

/// Creates `folder` and its parents where they do not exist, durably. Throws as OutputFile does.
void make_folders(const std::filesystem::path& folder);

}  // namespace meshtrain
