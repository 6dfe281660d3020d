#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "mesh/base/files/output_file.h"
#include "runtime/training/data/options.h"

namespace meshtrain {

/// The description of a token file, which `data prepare` writes beside it as NAME.json: mine.bin.json of mine.bin. A
/// token file itself says nothing of what it holds.
struct TokenSidecar {
  std::string dtype;                       ///< of a token: "uint16"; with an index also "int32"
  int64_t tokens = 0;                      ///< number of tokens in the file
  std::optional<int64_t> text_bytes = {};  ///< bytes of the documents' text, decompressed; none: older sidecars
  SampleLayout layout = SampleLayout::Stream;
  std::optional<int64_t> separator;  ///< the id after each document; none: nothing ends documents
  int64_t vocabulary_size = 0;       ///< 1 + the largest id that the tokenizer and the separator can give
  std::string tokenizer;             ///< its absolute path, or "bytes"
  std::string tokenizer_checksum;    ///< tokenizer_fingerprint()
  std::string command;               ///< the command line that made the file

  // Packed samples (PackedWriter) have these too:
  std::string index = {}, loss_mask = {};       ///< the names of NAME.idx and NAME.mask beside the tokens; empty: none
  std::optional<int64_t> sequence_length = {};  ///< S of records of S + 1 tokens; none: no records, or of any length
  std::optional<int64_t> samples = {};          ///< number of samples in all records; none: older sidecars

  /// Returns the value for data.dtype.
  std::string data_dtype() const { return index.empty() ? dtype : "megatron"; }
  /// Returns the bytes that the tokens take.
  int64_t num_bytes() const;
};

/// Returns NAME.json of the token file NAME.
std::filesystem::path sidecar_path(const std::filesystem::path& tokens);

/// Returns the sidecar of a token file; std::nullopt when that file or NAME.json does not exist, or NAME.json is
/// another program's: no JSON object, or one whose "format" says so. Throws InputError, naming the file, when it cannot
/// be read or parsed, says no format, or is a damaged sidecar.
std::optional<TokenSidecar> read_sidecar(const std::filesystem::path& tokens);

/// Throws InputError when NAME.json exists and is not a sidecar: write_sidecar() would replace somebody's file.
void check_sidecar_path(const std::filesystem::path& tokens);

/// The replacement of a token file and its sidecar. A process that is killed within it leaves both old files, both new
/// ones, or a sidecar that read_sidecar() refuses: prepare the tokens again.
class SidecarReplacement {
 public:
  /// Makes the new sidecar durable beside the old one. Throws as OutputFile does.
  SidecarReplacement(const std::filesystem::path& tokens, const TokenSidecar& sidecar);
  /// Removes what finish() has not used; a sidecar after begin() stays refused.
  ~SidecarReplacement();

  /// Puts a sidecar in place that is refused. Call before the tokens appear under their name.
  void begin();
  /// Puts the new sidecar in place. Call after the tokens have appeared.
  void finish();

 private:
  std::filesystem::path sidecar_, marker_;
  OutputFile file_;
};

/// Writes NAME.json, complete or not at all. Throws as OutputFile does.
void write_sidecar(const std::filesystem::path& tokens, const TokenSidecar& sidecar);

}  // namespace meshtrain
