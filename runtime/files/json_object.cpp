#include "runtime/files/json_object.h"

#include <algorithm>

#include "mesh/error.h"
#include "runtime/files/content.h"
#include "runtime/files/file_reader.h"

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

}  // namespace

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
