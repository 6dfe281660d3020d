#include "runtime/data/text_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "mesh/error.h"
#include "runtime/data/mapped_file.h"
#include "runtime/tokenizer/utf8.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_json_lines(const fs::path& file) {
  return file.extension() == ".jsonl";
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

/// "column 9: syntax error while parsing value ...": of a text on one line.
std::string reason_of(const json::exception& error) {
  const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
  const size_t column = what.find("column "), kind = what.find("] ");
  const size_t begin = column != std::string::npos ? column : kind != std::string::npos ? kind + 2 : 0;
  return what.substr(begin, 200);
}

std::string document_of(std::string_view line, const TextFormat& format, const std::function<std::string()>& place) {
  std::string replaced;
  if (valid_utf8(line) != line.size()) line = replaced = with_replacements(line);
  json object;
  try {
    object = json::parse(line);
  } catch (const json::exception& error) {
    throw InputError(place() + "not valid JSON: " + reason_of(error));
  }
  if (!object.is_object()) throw InputError(place() + "not a JSON object");
  const auto found = object.find(format.field);
  if (found == object.end())
    throw InputError(place() + "no \"" + format.field + "\": name the text's key with --field");
  if (!found->is_string()) throw InputError(place() + "\"" + format.field + "\" is not a text");
  return found->get<std::string>();
}

}  // namespace

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
                       const std::function<void(std::string_view text, int64_t bytes)>& visit) {
  const MappedFile file(part.file);
  const std::string_view all(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
  if (!has_lines(part.file, format)) {
    if (!all.empty()) visit(all, file.size());
    return;
  }
  const auto line_behind = [&](size_t at) { return std::min(all.find('\n', at), all.size() - 1) + 1; };
  const size_t end = std::min(static_cast<size_t>(part.end), all.size());
  auto at = static_cast<size_t>(part.begin);
  if (at > 0 && at < all.size()) at = line_behind(at - 1);  // the line that began before belongs to the part before
  while (at < end) {
    const size_t begin = at;
    at = line_behind(begin);
    std::string_view line = all.substr(begin, at - begin);
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto bytes = static_cast<int64_t>(at - begin);
    if (!is_json_lines(part.file)) {
      if (!line.empty()) visit(line, bytes);
      continue;
    }
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string document = document_of(line, format, [&] {
      const auto lines = std::count(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
      return part.file.string() + ", line " + std::to_string(lines + 1) + ": ";
    });
    if (!document.empty()) visit(document, bytes);
  }
}

}  // namespace meshtrain
