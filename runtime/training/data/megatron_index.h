#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "mesh/base/files/file_reader.h"

namespace meshtrain {

/// The index NAME.idx that Megatron writes beside NAME.bin. It lists sequences by their lengths and where they are in
/// the .bin file, and documents as runs of sequences. Here its sequences are one stream of tokens, end to end in the
/// order of the index. The format is that of Megatron-LM's megatron/core/datasets/indexed_dataset.py, little-endian:
///
///   "MMIDIDX\0\0"   9 bytes
///   version         uint64, 1
///   dtype           uint8: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (6 and 7 are no integers)
///   n, d            uint64 each: sequences; documents and one more
///   lengths         int32 [n], in tokens
///   pointers        int64 [n], in bytes of the .bin file
///   documents       int64 [d], ascending from 0 to n: the first sequence of each, and the end
///
/// An index may be larger than memory: only the starts of contiguous stretches of sequences are kept. Any thread may
/// call; functions that look up documents read the file, and throw InputError when the disk fails.
class MegatronIndex {
 public:
  /// Reads and checks the complete index of `tokens`, a file of `num_bytes` bytes. Throws InputError, one line with the
  /// path, when it is missing, malformed, or points outside of `tokens`.
  MegatronIndex(const std::filesystem::path& tokens, int64_t num_bytes);

  /// Returns true when there is an index beside `tokens`: a NAME.idx that begins as one does.
  static bool is_beside(const std::filesystem::path& tokens);
  /// Returns NAME.idx for NAME.bin. Throws InputError when `tokens` has another extension.
  static std::filesystem::path path_of(const std::filesystem::path& tokens);

  /// Returns the dtype of a token: "int32".
  const std::string& dtype() const { return dtype_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_bounds_ - 1; }

  /// Tokens that are contiguous in the .bin file.
  struct Run {
    int64_t first_byte;
    int64_t num_tokens;
  };
  /// Returns the contiguous tokens from token `token` of the stream on, which must be below num_tokens().
  Run run_at(int64_t token) const;

  /// Returns the tokens in [first, end) with which a document begins, ascending; documents without tokens are left out.
  std::vector<int64_t> document_starts(int64_t first, int64_t end) const;
  /// Returns the tokens with which documents [first, first + count) begin; that of num_documents() is where the last
  /// one ends.
  std::vector<int64_t> starts_of(int64_t first, int64_t count) const;

 private:
  /// Sequences that are contiguous in the .bin file: usually all of them.
  struct Stretch {
    int64_t first_token;
    int64_t first_byte;
    int64_t first_sequence;
  };

  void read_header();
  void read_sequences(int64_t num_bytes);
  void check_documents() const;
  int64_t lengths_begin() const;
  int64_t pointers_begin() const;
  int64_t bounds_begin() const;
  [[noreturn]] void fail(const std::string& what) const;

  FileReader file_;
  std::string dtype_;
  int64_t width_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_bounds_ = 0;
  int64_t num_tokens_ = 0;
  std::vector<Stretch> stretches_;
};

}  // namespace meshtrain
