#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// How documents lie in files.
struct TextFormat {
  bool document_per_line = false;         ///< a line of a text file is a document; otherwise the file is one
  std::optional<std::string> field = {};  ///< of JSON lines (is_json_lines()): the key of the document; none: "text"

  std::string key() const { return field.value_or("text"); }
};

/// Throws InputError for what shows before the texts are gone through: a file whose beginning is no text (compressed,
/// or with a byte 0), two that are the same, a key asked for where no file is JSON lines.
void check_texts(const std::vector<std::filesystem::path>& files, const TextFormat& format);

/// Bytes [begin, end) of a file: the documents that begin there.
struct TextPart {
  std::filesystem::path file;
  int64_t begin = 0;
  int64_t end = 0;
};

/// All documents of `files`, in their order, in parts of about `bytes`: several small files, or a piece of one that
/// holds a document a line. Files without bytes are left out. Depends on the names and sizes of the files alone. Throws
/// InputError when a size cannot be read.
std::vector<std::vector<TextPart>> divide_text(const std::vector<std::filesystem::path>& files,
                                               const TextFormat& format, int64_t bytes);

struct TextDocument {
  std::string_view text;
  int64_t bytes;     ///< of the file that are done with it
  int64_t not_utf8;  ///< of these, that are no UTF-8
};

/// Calls `visit` with the documents of `part` that are not empty, one after the other. Lines end with \n or \r\n. Bytes
/// of JSON lines that are no UTF-8 are replaced as Tokenizer::encode says; other text is passed as it is. Throws
/// InputError, with file and line, for a line that is no JSON object with a text under the key, and, with file and
/// place, for a byte 0; blank lines are left out.
void for_each_document(const TextPart& part, const TextFormat& format,
                       const std::function<void(const TextDocument& document)>& visit);

}  // namespace meshtrain
