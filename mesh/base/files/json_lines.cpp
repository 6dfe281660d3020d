#include "mesh/base/files/json_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "mesh/base/files/compressed_file.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/lower_case.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr std::string_view kBlank = " \t\r\n\xEF\xBB\xBF";

/// Returns the text without the blanks at its beginning.
std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlank), text.size()));
}

bool is_open(std::string_view text) {
  return text.starts_with('{') || text.starts_with('[');
}

/// Returns the beginning of a file, decompressed: its first line and the first characters of the next one.
std::string beginning_of(const std::filesystem::path& file) {
  constexpr size_t kPiece = size_t{1} << 16, kMost = size_t{256} << 20;
  std::string text;
  const auto has_enough = [&] {
    const std::string_view line = without_blanks(text);
    if (line.empty()) return false;
    const size_t end = line.find('\n');
    return !is_open(line) || text.size() > kMost ||
           (end != std::string_view::npos && !without_blanks(line.substr(end)).empty());
  };
  if (compression_of(file) == Compression::None) {
    const FileReader reader(file);
    while (!has_enough() && static_cast<int64_t>(text.size()) < reader.size()) {
      const auto at = static_cast<int64_t>(text.size());
      text += reader.read(at, std::min(reader.size() - at, static_cast<int64_t>(kPiece))).text();
    }
    return text;
  }
  CompressedFile reader(file);
  for (size_t read = 1; read > 0 && !has_enough();) {
    const size_t before = text.size();
    text.resize(before + kPiece);
    read = reader.read(text.data() + before, kPiece);
    text.resize(before + read);
  }
  return text;
}

}  // namespace

json first_json_line(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  return json::parse(
      line, [](int depth, json::parse_event_t, json&) { return depth < 64; }, false);
}

bool is_json_lines(const std::filesystem::path& file, const std::vector<std::string>& keys) {
  const std::string ending = lower_case(uncompressed_name(file).extension());
  if (ending == ".jsonl" || ending == ".ndjson") return true;
  if (ending != ".json" && !ending.empty()) return false;
  const std::string beginning = beginning_of(file);
  const std::string_view text = without_blanks(beginning);
  if (!is_open(text)) return false;
  const json line = first_json_line(text);
  if (line.is_discarded() || !line.is_structured()) return false;
  const std::string_view next = without_blanks(text.substr(std::min(text.find('\n'), text.size())));
  return is_open(next) ||
         (next.empty() && std::ranges::any_of(keys, [&](const auto& key) { return line.contains(key); }));
}

std::string json_lines_command(std::string_view beginning, const std::filesystem::path& file) {
  std::string begin;  // without blanks
  for (const char c : beginning.substr(0, 4096)) {
    if (kBlank.find(c) == std::string_view::npos) begin += c;
  }
  const bool is_one = begin.starts_with('{') || begin.starts_with("[{\"role\":") || begin.starts_with("[{\"content\":");
  if (!is_one && !begin.starts_with('[')) return "";
  return std::string("jq -c ") + (is_one ? "." : "'.[]'") + " " + file.string() + " > FILE.jsonl";
}

}  // namespace meshtrain
