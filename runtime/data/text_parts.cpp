#include "runtime/data/text_parts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <system_error>

#include "mesh/error.h"
#include "runtime/data/input_files.h"
#include "runtime/files/file_reader.h"
#include "runtime/files/json_object.h"
#include "runtime/tokenizer/utf8.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The bytes that files of a compression program begin with.
struct Signature {
  size_t offset;
  std::string_view bytes;
  const char* program;
};
constexpr std::array<Signature, 5> kSignatures = {{{0, "\x1f\x8b", "gzip"},
                                                   {0, "\x28\xb5\x2f\xfd", "zstd"},
                                                   {4, "1AY&SY", "bzip2"},
                                                   {0, "\xfd\x37zXZ", "xz"},
                                                   {0, "PK\x03\x04", "zip"}}};

/// Throws InputError when `text`, which is at `offset` in `file`, has a byte 0: no text that is read here has one.
void refuse_binary(const fs::path& file, size_t offset, std::string_view text) {
  const size_t zero = text.find('\0');
  if (zero == std::string_view::npos) return;
  throw InputError(file.string() + " is no text: its byte " + std::to_string(offset + zero) +
                   " is 0: decompress it or convert it to UTF-8 first, or take its bytes as they are by --bytes");
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

bool has_lines(const fs::path& file, const TextFormat& format) {
  return format.document_per_line || is_json_lines(file);
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

std::string document_of(std::string_view line, const std::string& key, const std::function<std::string()>& location) {
  json object;
  try {
    object = json::parse(line);
  } catch (const json::exception& error) {
    throw InputError(location() + "not valid JSON: " + without_line(reason_of(error)));
  }
  if (!object.is_object()) throw InputError(location() + "not a JSON object");
  const auto found = object.find(key);
  if (found == object.end()) throw InputError(location() + "no \"" + key + "\": name the text's key with --field");
  if (!found->is_string()) throw InputError(location() + "\"" + key + "\" is not a text");
  return found->get<std::string>();
}

}  // namespace

void check_texts(const std::vector<fs::path>& files, const TextFormat& format) {
  constexpr int64_t kBeginning = 1 << 16;
  refuse_repeated(files);
  if (format.field && std::none_of(files.begin(), files.end(), is_json_lines)) {
    throw InputError("--field " + *format.field +
                     " is a key of JSON lines, and no input is *.jsonl or *.ndjson: leave it out, or give a file of "
                     "JSON lines such a name");
  }
  for (const fs::path& file : files) {
    const FileReader reader(file);
    const FileBytes bytes_of_beginning = reader.read(0, std::min(reader.size(), kBeginning));
    const std::string_view beginning = bytes_of_beginning.text();
    for (const auto& [offset, bytes, program] : kSignatures) {
      if (beginning.size() < offset || !beginning.substr(offset).starts_with(bytes)) continue;
      throw InputError(file.string() + " is no text: at byte " + std::to_string(offset) + " it has the mark of " +
                       program + ": decompress it first, and give what comes out");
    }
    refuse_binary(file, 0, beginning);
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
    const int64_t step = has_lines(file, format) ? bytes : size;
    for (int64_t begin = 0; begin < size; begin += step) add({file, begin, std::min(size, begin + step)});
  }
  return parts;
}

void for_each_document(const TextPart& part, const TextFormat& format,
                       const std::function<void(const TextDocument& document)>& visit) {
  const FileReader file(part.file);
  const auto not_utf8 = [](std::string_view text) { return static_cast<int64_t>(invalid_utf8(text)); };
  if (!has_lines(part.file, format)) {
    const FileBytes bytes = file.read(0, file.size());
    refuse_binary(part.file, 0, bytes.text());
    if (bytes.size() > 0) visit({bytes.text(), bytes.size(), not_utf8(bytes.text())});
    return;
  }
  const bool is_json = is_json_lines(part.file);
  const std::string key = format.key();
  const int64_t first = std::max(part.begin - 1, int64_t{0});
  const std::string all = read_lines(file, first, part.end);
  const auto line_behind = [&](size_t at) { return std::min(all.find('\n', at), all.size() - 1) + 1; };
  const size_t end = std::min(static_cast<size_t>(part.end - first), all.size());
  auto at = static_cast<size_t>(part.begin - first);
  if (at > 0 && at < all.size()) at = line_behind(at - 1);  // the line that began before belongs to the part before
  while (at < end) {
    const size_t begin = at;
    at = line_behind(begin);
    std::string_view line = std::string_view(all).substr(begin, at - begin);
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto bytes = static_cast<int64_t>(at - begin);
    refuse_binary(part.file, static_cast<size_t>(first) + begin, line);
    const int64_t invalid = not_utf8(line);
    if (!is_json) {
      if (!line.empty()) visit({line, bytes, invalid});
      continue;
    }
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string replaced = invalid > 0 ? with_replacements(line) : "";
    const std::string document = document_of(invalid > 0 ? replaced : line, key, [&] {
      int64_t lines = 0;
      file.for_each_block(0, first + static_cast<int64_t>(begin),
                          [&](std::string_view block) { lines += std::count(block.begin(), block.end(), '\n'); });
      return part.file.string() + ", line " + std::to_string(lines + 1) + ": ";
    });
    if (!document.empty()) visit({document, bytes, invalid});
  }
}

}  // namespace meshtrain
