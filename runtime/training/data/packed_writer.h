#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "mesh/base/files/output_file.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {

/// The writer of token files that consist of samples packed into records of one length: NAME.bin and NAME.idx of
/// Megatron, in which each sample is a document, and NAME.mask, a byte for each token, 0 where it is not counted as a
/// label. A recipe reads them with dtype megatron, layout records, documents index and the mask as loss_mask, as their
/// sidecar NAME.bin.json says.
///
/// Samples are not divided. A sample goes to the open record with the least room that still takes it; records are
/// written when they are full, or the fullest one when kOpenRecords are open. What remains of a record is filled with
/// `padding`, a document of its own of which no label counts. What is written depends on the samples and their order
/// alone.
class PackedWriter {
 public:
  static constexpr size_t kOpenRecords = 64;

  /// Opens the files. `record`: tokens of a record. `dtype`: uint16 or int32. `packs`: false gives each sample a
  /// record. Throws InputError when `path` is no NAME.bin or the files cannot be created.
  PackedWriter(const std::filesystem::path& path, const std::string& dtype, int64_t record, int64_t padding,
               bool packs);

  /// Adds a sample of 1 to `record` tokens; `counted`: 1 for each that counts as a label. The first token of a sample
  /// never does: nothing of the sample stands before it. Throws std::runtime_error when the disk fails.
  void add(const std::vector<int64_t>& ids, const std::vector<uint8_t>& counted);
  /// Writes the remaining records and the index; the files then appear, complete, in the place of old ones, with a
  /// sidecar that says of the tokens what `origin` says of their tokenizer and command. A process that is killed
  /// meanwhile leaves the old files, the new ones, or files that are refused: without an index, or by their sidecar.
  void finish(const TokenSidecar& origin);

  int64_t num_records() const { return num_records_; }
  int64_t num_counted() const { return num_counted_; }
  int64_t num_padding() const { return num_padding_; }

  /// Returns NAME.mask for NAME.bin.
  static std::filesystem::path mask_of(const std::filesystem::path& path);

 private:
  struct Record {
    std::vector<int64_t> ids;
    std::vector<uint8_t> mask;
    std::vector<int64_t> lengths;  // of its documents
  };

  void write(Record& record);
  void write_index();
  TokenSidecar sidecar_of(TokenSidecar origin) const;

  std::filesystem::path index_path_;
  std::string dtype_;
  size_t record_;
  int64_t padding_;
  bool packs_;
  OutputFile tokens_, mask_, index_;
  std::vector<Record> open_;
  std::vector<int32_t> lengths_;
  int64_t num_samples_ = 0, num_records_ = 0, num_counted_ = 0, num_padding_ = 0;
};

}  // namespace meshtrain
