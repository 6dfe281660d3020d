#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "runtime/training/checkpoint/piece.h"

namespace meshtrain {

/// A writer of the pieces that one rank owns, for any number of saves, each a safetensors file. No collective.
class PieceWriter {
 public:
  /// `pieces` are views of values that change. `copies`: save() copies them to host memory, which is kept for the next
  /// save. Without it only values on a GPU are copied, and the others must not change before done(), or the file would
  /// mix two steps: for values that memory cannot hold twice.
  PieceWriter(std::vector<Piece> pieces, std::string file_name, bool copies);

  /// Starts writing FOLDER/file_name in the background; the folder must exist. Call wait() before the next save().
  /// Without pieces there is no file.
  void save(const std::filesystem::path& folder);
  /// Returns true when wait() would return at once; waits for that up to `patience`.
  bool done(std::chrono::milliseconds patience = {}) const;
  /// Waits until the file is durable. Returns its part of the manifest, of ManifestPart::packed(); empty without
  /// pieces. Throws std::runtime_error when it could not be written.
  std::string wait();
  /// Returns the bytes of host memory that copies take from the first save() on.
  int64_t copy_bytes() const;
  /// Throws std::runtime_error unless the file of the last wait() is in `folder`, with the size that was written.
  void expect_file_in(const std::filesystem::path& folder) const;

 private:
  bool copies(const at::Tensor& values) const { return copies_ || values.is_cuda(); }
  void copy();
  std::string write(const std::filesystem::path& folder);

  std::vector<Piece> pieces_;
  std::string file_name_;
  bool copies_;
  std::vector<at::Tensor> values_;  // values of pieces_, or copies of them
  size_t num_bytes_ = 0;            // of the file
  std::future<std::string> writing_;
};

}  // namespace meshtrain
