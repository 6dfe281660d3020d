#include "runtime/text/prepare/text_parts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/compressed_file.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_lines.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/files/lower_case.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/prepare/parquet_text.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Throws InputError when `text`, which is at `offset` in `file`, has a byte 0: no text that is read here has one.
void refuse_binary(const fs::path& file, size_t offset, std::string_view text) {
  const size_t zero = text.find('\0');
  if (zero == std::string_view::npos) return;
  throw InputError(file.string() + " is not text: its byte " + std::to_string(offset + zero) +
                   " is 0: decompress it or convert it to UTF-8 first, or use its bytes as tokens with --bytes");
}

/// Reads bytes [begin, end) of a file of lines, and the rest of the last line that begins there.
std::string read_lines(const FileReader& file, int64_t begin, int64_t end) {
  constexpr int64_t kMore = 1 << 16;
  std::string text;
  while (begin < file.size()) {
    const int64_t count = begin < end ? end - begin : kMore;
    const FileBytes more = file.read(begin, std::min(count, file.size() - begin));
    const size_t line_end = begin < end ? more.text().rfind('\n') : more.text().find('\n');
    const bool ends = begin < end ? line_end + 1 == more.text().size() : line_end != std::string_view::npos;
    text += begin < end || !ends ? more.text() : more.text().substr(0, line_end + 1);
    if (ends) break;
    begin += more.size();
  }
  return text;
}

bool has_json_lines(const fs::path& file, const TextFormat& format) {
  return is_json_lines(file, {format.key()});
}

bool has_lines(const fs::path& file, const TextFormat& format) {
  return format.document_per_line || has_json_lines(file, format);
}

/// Returns the first bytes of a file, decompressed.
std::string beginning_of(const fs::path& file) {
  constexpr size_t kBeginning = size_t{1} << 16;
  if (compression_of(file) == Compression::None) {
    const FileReader reader(file);
    return std::string(reader.read(0, std::min(reader.size(), static_cast<int64_t>(kBeginning))).text());
  }
  std::string beginning(kBeginning, '\0');
  beginning.resize(CompressedFile(file).read(beginning.data(), beginning.size()));
  return beginning;
}

/// Returns what to do with content that is not text; empty when it is text.
std::string advice_on(Content content, bool is_json_lines) {
  switch (content) {
    case Content::Unknown:
    case Content::Empty:
    case Content::Zeros:
      return "";
    case Content::Html:
      return is_json_lines ? "download it again" : "";
    case Content::ServerError:
      return "download it again";
    case Content::Gzip:
      return "give it a name that ends in .gz, or decompress it first";
    case Content::Zstd:
      return "give it a name that ends in .zst, or decompress it first";
    case Content::Parquet:
      return "give it a name that ends in .parquet";
    case Content::Bzip2:
    case Content::Xz:
    case Content::Zip:
      return "decompress it first, and give the result";
    default:
      return "give only its text";
  }
}

/// Throws InputError for a *.json document with texts under the key, which would otherwise be read as one text.
void refuse_json_document(const fs::path& file, const std::string& key) {
  if (lower_case(uncompressed_name(file).extension()) != ".json") return;
  const std::string beginning = beginning_of(file);
  const std::string command = json_lines_command(beginning, file);
  const size_t found = beginning.find('"' + key + '"');
  if (command.empty() || found == beginning.npos) return;
  const size_t next = beginning.find_first_not_of(" \t", found + key.size() + 2);
  if (next == beginning.npos || beginning[next] != ':') return;
  throw InputError(file.string() + " is a JSON document with \"" + key + "\", not JSON lines: " + command +
                   " makes them; a file whose name ends in .txt is read as one text");
}

int64_t size_of(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (error) throw InputError("cannot read " + file.string() + ": " + error.message());
  return static_cast<int64_t>(size);
}

/// Returns "column 9: syntax error while parsing value ...", without the line number of a text of one line: messages
/// name the line of the file instead.
std::string without_line(const std::string& reason) {
  constexpr std::string_view kLine = "line 1, ";
  return reason.starts_with(kLine) ? reason.substr(kLine.size()) : reason;
}

/// Replaces NaN, Infinity and -Infinity outside of texts by null: Python's json.dumps() writes them, and the parser
/// refuses them. Returns their number.
size_t replace_numbers_of_python(std::string& line) {
  constexpr std::array<std::string_view, 3> kNumbers = {"NaN", "-Infinity", "Infinity"};
  size_t num_replaced = 0;
  bool in_text = false;
  for (size_t at = 0; at < line.size(); ++at) {
    if (line[at] == '"') in_text = !in_text;
    if (in_text && line[at] == '\\') ++at;
    if (in_text || at >= line.size()) continue;
    for (const std::string_view number : kNumbers) {
      if (line.compare(at, number.size(), number) != 0) continue;
      line.replace(at, number.size(), "null");
      ++num_replaced;
    }
  }
  return num_replaced;
}

/// Returns the text under `key` of a line of JSON; empty where the value is null. Adds to `invalid` the bytes of the
/// escapes that it replaces.
std::string document_of(std::string_view line, const std::string& key, const std::function<std::string()>& location,
                        int64_t& invalid) {
  json object;
  try {
    object = json::parse(line);
  } catch (const json::exception& error) {
    constexpr int64_t kEscape = 6;  // bytes
    std::string replaced(line);
    const size_t num_escapes = replace_lone_surrogates(replaced), num_numbers = replace_numbers_of_python(replaced);
    if (num_escapes + num_numbers > 0) {
      invalid += static_cast<int64_t>(num_escapes) * kEscape;
      return document_of(replaced, key, location, invalid);
    }
    throw InputError(location() + "not valid JSON: " + without_line(reason_of(error)));
  }
  if (!object.is_object()) throw InputError(location() + "not a JSON object");
  const auto found = object.find(key);
  if (found == object.end()) throw InputError(location() + "no \"" + key + "\": name the text's key with --field");
  if (found->is_null()) return "";
  if (!found->is_string()) {
    throw InputError(location() + "\"" + key + "\" is not a string, but of the type " + found->type_name() +
                     ": name the key of the text with --field, or remove the line");
  }
  return found->get<std::string>();
}

int64_t not_utf8(std::string_view text) {
  return static_cast<int64_t>(invalid_utf8(text));
}

/// The visits of a file's lines, each with or without its end.
class Lines {
 public:
  Lines(const fs::path& file, const TextFormat& format, const std::function<void(const TextDocument& document)>& visit)
      : file_(file), is_json_(has_json_lines(file, format)), key_(format.key()), visit_(visit) {}

  /// Visits the document in `line`, which is at `offset` of the text, if there is one. `bytes`: TextDocument::bytes.
  /// `location` returns the beginning of a message.
  void add(std::string_view line, size_t offset, int64_t bytes, const std::function<std::string()>& location) const {
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    refuse_binary(file_, offset, line);
    int64_t invalid = not_utf8(line);
    if (!is_json_) {
      if (!line.empty()) visit_({line, bytes, invalid});
      return;
    }
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    const std::string replaced = invalid > 0 ? with_replacements(line) : "";
    const std::string document = document_of(invalid > 0 ? replaced : line, key_, location, invalid);
    if (!document.empty()) visit_({document, bytes, invalid});
  }

 private:
  const fs::path& file_;
  bool is_json_;
  std::string key_;
  const std::function<void(const TextDocument& document)>& visit_;
};

std::string line_location(const fs::path& file, int64_t line) {
  return file.string() + ", line " + std::to_string(line) + ": ";
}

/// The text of a compressed file, of which no more than a line is kept, or all of it where it is one document.
class CompressedText {
 public:
  explicit CompressedText(const fs::path& file) : path_(file), file_(file) {}

  void visit_full(const std::function<void(const TextDocument& document)>& visit) {
    while (read_more()) continue;
    refuse_binary(path_, 0, text_);
    if (!text_.empty()) visit({text_, file_.position(), not_utf8(text_)});
  }

  void visit_lines(const Lines& lines) {
    int64_t line = 0, position = 0;
    for (size_t searched = 0, offset = 0; read_more();) {
      size_t begin = 0;
      const auto add = [&](size_t end) {
        ++line;
        const int64_t now = file_.position();
        lines.add(std::string_view(text_).substr(begin, end - begin), offset + begin, now - position,
                  [&] { return line_location(path_, line); });
        position = now;
        begin = end;
      };
      for (size_t found; (found = text_.find('\n', searched)) != std::string::npos; searched = begin) add(found + 1);
      if (ended_ && begin < text_.size()) add(text_.size());
      text_.erase(0, begin);
      offset += begin;
      searched = text_.size();
    }
  }

 private:
  /// Appends the next bytes to text_. Returns false when an earlier call has found the end.
  bool read_more() {
    if (ended_) return false;
    const size_t before = text_.size();
    if (before > kMostBytes) {
      throw InputError("cannot read " + path_.string() + ": a document in it has more than " +
                       std::to_string(kMostBytes) + " bytes, decompressed: split it");
    }
    text_.resize(before + kReadBytes);
    const size_t read = file_.read(text_.data() + before, kReadBytes);
    text_.resize(before + read);
    ended_ = read == 0;
    return true;
  }

  static constexpr size_t kReadBytes = size_t{1} << 18, kMostBytes = size_t{1} << 31;
  const fs::path& path_;
  CompressedFile file_;
  std::string text_;
  bool ended_ = false;
};

void visit_rows(const TextPart& part, const TextFormat& format,
                const std::function<void(const TextDocument& document)>& visit) {
  int64_t position = 0;
  for_each_parquet_text(part.file, format.key(), [&](std::string_view text, int64_t row, double read) {
    if (text.find('\0') != std::string_view::npos) {
      throw InputError(part.file.string() + ", row " + std::to_string(row) + ": \"" + format.key() +
                       "\" is not text: it has a byte 0");
    }
    const auto now = static_cast<int64_t>(read * static_cast<double>(part.end));
    const int64_t bytes = std::exchange(position, now);
    if (!text.empty()) visit({text, now - bytes, not_utf8(text)});
  });
}

}  // namespace

void check_text(const fs::path& file, bool is_json_lines) {
  const std::string beginning = beginning_of(file);
  const Content content = content_of(beginning);
  if (const std::string advice = advice_on(content, is_json_lines); !advice.empty()) {
    throw InputError(file.string() + " is not text: it is " + std::string(name(content)) + ": " + advice);
  }
  refuse_binary(file, 0, beginning);
}

void check_texts(const std::vector<fs::path>& files, const TextFormat& format) {
  const auto has_fields = [&](const fs::path& file) { return has_json_lines(file, format) || is_parquet(file); };
  if (format.field && std::none_of(files.begin(), files.end(), has_fields)) {
    throw InputError("--field " + *format.field +
                     " is a key of JSON lines, and no input is *.jsonl or *.ndjson (or *.parquet): leave it out, or "
                     "give a file of JSON lines such a name");
  }
  for (const fs::path& file : files) {
    if (is_parquet(file)) {
      check_parquet(file, format.key());
      continue;
    }
    const bool is_json = has_json_lines(file, format);
    check_text(file, is_json);
    if (!is_json) refuse_json_document(file, format.key());
  }
}

std::vector<std::vector<TextPart>> divide_text(const std::vector<fs::path>& files, const TextFormat& format,
                                               int64_t bytes) {
  std::vector<std::vector<TextPart>> parts;
  int64_t filled = bytes;  // of the last part
  const auto add = [&](TextPart part) {
    const int64_t size = part.end - part.begin;
    if (filled + size > bytes) {
      parts.emplace_back();
      filled = 0;
    }
    filled += size;
    parts.back().push_back(std::move(part));
  };
  for (const fs::path& file : files) {
    const int64_t size = size_of(file);
    const bool is_cut = has_lines(file, format) && compression_of(file) == Compression::None && !is_parquet(file);
    const int64_t step = is_cut ? bytes : size;
    for (int64_t begin = 0; begin < size; begin += step) add({file, begin, std::min(size, begin + step)});
  }
  return parts;
}

void for_each_document(const TextPart& part, const TextFormat& format,
                       const std::function<void(const TextDocument& document)>& visit) {
  if (is_parquet(part.file)) return visit_rows(part, format, visit);
  const Lines lines(part.file, format, visit);
  if (compression_of(part.file) != Compression::None) {
    CompressedText text(part.file);
    return has_lines(part.file, format) ? text.visit_lines(lines) : text.visit_full(visit);
  }
  const FileReader file(part.file);
  if (!has_lines(part.file, format)) {
    const FileBytes bytes = file.read(0, file.size());
    refuse_binary(part.file, 0, bytes.text());
    if (bytes.size() > 0) visit({bytes.text(), bytes.size(), not_utf8(bytes.text())});
    return;
  }
  const int64_t first = std::max(part.begin - 1, int64_t{0});
  const std::string all = read_lines(file, first, part.end);
  const auto line_after = [&](size_t at) { return std::min(all.find('\n', at), all.size() - 1) + 1; };
  const size_t end = std::min(static_cast<size_t>(part.end - first), all.size());
  auto at = static_cast<size_t>(part.begin - first);
  if (at > 0 && at < all.size()) at = line_after(at - 1);  // the line that began before belongs to the part before
  while (at < end) {
    const size_t begin = at;
    at = line_after(begin);
    lines.add(std::string_view(all).substr(begin, at - begin), static_cast<size_t>(first) + begin,
              static_cast<int64_t>(at - begin), [&] {
                int64_t ends = 0;
                file.for_each_block(0, first + static_cast<int64_t>(begin), [&](std::string_view block) {
                  ends += std::count(block.begin(), block.end(), '\n');
                });
                return line_location(part.file, ends + 1);
              });
  }
}

}  // namespace meshtrain
