#include "runtime/program/yaml/flat_keys.h"

namespace meshtrain {
namespace {

void add_keys(const YamlValue& value, const std::string& path, std::string_view opened, FlatKeys& keys) {
  if (!opened.empty() && path == opened) {
    for (size_t i = 0; i < value.items.size(); ++i)
      add_keys(value.items[i], path + "[" + std::to_string(i) + "]", opened, keys);
    return;
  }
  if (value.kind != YamlValue::Kind::Map) {
    keys.emplace_back(path, flat_text(value));
    return;
  }
  for (const YamlEntry& entry : value.entries) {
    add_keys(entry.value, path.empty() ? entry.key : path + "." + entry.key, opened, keys);
  }
}

}  // namespace

FlatKeys flat_keys(const YamlValue& document, std::string_view opened) {
  FlatKeys keys;
  add_keys(document, "", opened, keys);
  return keys;
}

std::string flat_text(const YamlValue& value) {
  if (value.kind == YamlValue::Kind::Null) return "none";
  if (value.kind == YamlValue::Kind::Scalar) return value.text;
  std::string text;
  for (const YamlValue& item : value.items) text += (text.empty() ? "" : ", ") + flat_text(item);
  for (const YamlEntry& entry : value.entries) {
    text += (text.empty() ? "" : ", ") + entry.key + ": " + flat_text(entry.value);
  }
  return value.kind == YamlValue::Kind::List ? "[" + text + "]" : "{" + text + "}";
}

}  // namespace meshtrain
