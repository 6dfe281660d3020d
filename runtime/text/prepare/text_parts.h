#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// The division of files into documents.
struct TextFormat {
  bool document_per_line = false;  ///< each line of a text file is a document; otherwise the file is one
  /// The key of the document in JSON lines (is_json_lines()), its column in Parquet files (is_parquet()); none: "text".
  std::optional<std::string> field = {};

  std::string key() const { return field.value_or("text"); }
};

/// Checks that the beginning of a file is text. Throws InputError when the file is not compressed as its name says, has
/// a byte 0, or holds a server's answer in place of its content.
void check_text(const std::filesystem::path& file, bool is_json_lines);

/// Checks files before their texts are read. Throws as check_text() does, and InputError for a *.json document with
/// texts under the key, and for a format.field when no file is JSON lines.
void check_texts(const std::vector<std::filesystem::path>& files, const TextFormat& format);

/// A part of a file: the documents that begin in bytes [begin, end).
struct TextPart {
  std::filesystem::path file;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Divides all documents of `files`, in their order, into parts of about `bytes`: several small files, or a piece of
/// one that holds a document a line. Compressed and Parquet files are not cut. Empty files are left out. The parts
/// depend on the names and sizes of the files alone. Throws InputError when a size cannot be read.
std::vector<std::vector<TextPart>> divide_text(const std::vector<std::filesystem::path>& files,
                                               const TextFormat& format, int64_t bytes);

struct TextDocument {
  std::string_view text;
  int64_t bytes;     ///< bytes of the file, as it is on the disk, up to the end of this document, since the one before
  int64_t not_utf8;  ///< those of them that are not UTF-8
};

/// Calls `visit` with the documents of `part` that are not empty, one after the other. Lines end with \n or \r\n; blank
/// lines are left out. Bytes of JSON lines that are not UTF-8 are replaced as Tokenizer::encode says; other text is
/// passed as it is. Of a Parquet file each row is a document. A compressed file (compression_of()) is decompressed on
/// the way; no more than a document of it is in memory. Throws InputError as CompressedFile does, for a document of
/// more than 2 GiB in one, and, with file and line, for a line that is not a JSON object with a text under the key,
/// and, with file and offset in the text, for a byte 0.
void for_each_document(const TextPart& part, const TextFormat& format,
                       const std::function<void(const TextDocument& document)>& visit);

}  // namespace meshtrain
