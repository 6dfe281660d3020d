#include "mesh/base/files/json_object.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/file_reader.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr int kDeepest = 200;

/// Returns the nesting depth of the lists and objects in `text`, which is JSON.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

/// Returns the code unit of the escape "\uXXXX" at `at`; std::nullopt when there is none.
std::optional<unsigned> escaped_unit(std::string_view text, size_t at) {
  constexpr size_t kLength = 6;
  if (at + kLength > text.size() || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  unsigned unit = 0;
  const char* const end = text.data() + at + kLength;
  const auto [rest, error] = std::from_chars(text.data() + at + 2, end, unit, 16);
  return error == std::errc() && rest == end ? std::optional(unit) : std::nullopt;
}

}  // namespace

size_t replace_lone_surrogates(std::string& text) {
  constexpr std::string_view kReplacement = "\\ufffd";
  const auto is_first = [](unsigned unit) { return unit >= 0xD800 && unit < 0xDC00; };
  const auto is_second = [](unsigned unit) { return unit >= 0xDC00 && unit < 0xE000; };
  size_t num_replaced = 0;
  for (size_t at = text.find('\\'); at < text.size(); at = text.find('\\', at)) {
    const std::optional<unsigned> unit = escaped_unit(text, at);
    if (!unit) {
      at += 2;  // another escape, of a backslash for example
      continue;
    }
    const std::optional<unsigned> next = escaped_unit(text, at + kReplacement.size());
    const bool is_pair = is_first(*unit) && next && is_second(*next);
    if (!is_pair && (is_first(*unit) || is_second(*unit))) {
      text.replace(at, kReplacement.size(), kReplacement);
      ++num_replaced;
    }
    at += (is_pair ? 2 : 1) * kReplacement.size();
  }
  return num_replaced;
}

std::string reason_of(const json::exception& error) {
  constexpr size_t kMost = 200;
  std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
  for (const std::string_view before : {"] ", "parse error at "}) {
    const size_t found = what.find(before);
    if (found != std::string::npos) what.erase(0, found + before.size());
  }
  return what.substr(0, kMost);
}

void refuse_deep_json(const std::string& subject, std::string_view text) {
  if (depth_of(text) <= kDeepest) return;
  throw InputError(subject + " is not read: its values are nested more than " + std::to_string(kDeepest) +
                   " levels deep");
}

json parse_json_object(const std::string& subject, std::string_view text, const json::parser_callback_t& callback) {
  refuse_deep_json(subject, text);
  json object;
  try {
    object = json::parse(text.begin(), text.end(), callback);
  } catch (const json::exception& error) {
    const std::string content = describe_content(text);
    throw InputError(subject + " is not valid JSON" + (content.empty() ? ": " + reason_of(error) : content));
  }
  if (!object.is_object()) throw InputError(subject + " is not a JSON object");
  return object;
}

json read_json_object(const std::string& file) {
  return parse_json_object(file, read_all(file).text());
}

}  // namespace meshtrain
