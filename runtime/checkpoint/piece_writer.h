#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "runtime/checkpoint/piece.h"

namespace meshtrain {

/// Writes the pieces that one rank owns, again and again, as a safetensors file each time. No collective.
class PieceWriter {
 public:
  /// Pieces are views of numbers that change. `copies`: a save copies them to host memory, which is kept for the next;
  /// else they must not change before done(), for numbers that memory has no room for twice.
  PieceWriter(std::vector<Piece> pieces, std::string file_name, bool copies);

  /// Begins to write FOLDER/file_name, in a folder that exists, in the background. wait() comes before the next save().
  /// Without pieces there is no file.
  void save(const std::filesystem::path& folder);
  /// Returns true when wait() will return at once, `patience` from now at the latest.
  bool done(std::chrono::milliseconds patience = {}) const;
  /// The file is durable: its part of the manifest, of ManifestPart::packed(); empty without pieces. Throws
  /// std::runtime_error when it could not be written.
  std::string wait();
  /// Throws std::runtime_error unless the file that wait() was called for is in `folder`, as long as it was written.
  void expect_file_in(const std::filesystem::path& folder) const;

 private:
  void copy();
  std::string write(const std::filesystem::path& folder);

  std::vector<Piece> pieces_;
  std::string file_name_;
  bool copies_;
  std::vector<at::Tensor> values_;  // of pieces_: themselves, or copies
  size_t num_bytes_ = 0;            // of the file
  std::future<std::string> writing_;
};

}  // namespace meshtrain
