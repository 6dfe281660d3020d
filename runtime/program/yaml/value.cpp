#include "runtime/program/yaml/value.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

bool is_control(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return byte < 0x20 || byte == 0x7f;
}

}  // namespace

std::string YamlLocation::text() const {
  if (!source) return "recipe";
  if (!source->is_file || line == 0) return source->name;
  return source->name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

const YamlValue* YamlValue::find(const std::string& key) const {
  for (const YamlEntry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlValue* YamlValue::find(const std::string& key) {
  return const_cast<YamlValue*>(std::as_const(*this).find(key));
}

std::string YamlValue::shown() const {
  switch (kind) {
    case Kind::Null:
      return "nothing";
    case Kind::Scalar:
      return meshtrain::quoted(text);
    case Kind::List:
      return "a list";
    case Kind::Map:
      return "a map";
  }
  return {};
}

namespace {

/// Returns true for a map of which every key is a whole number.
bool names_items(const YamlValue& map) {
  return map.kind == YamlValue::Kind::Map && !map.entries.empty() &&
         std::all_of(map.entries.begin(), map.entries.end(), [](const YamlEntry& entry) {
           return entry.key.size() < 10 && entry.key.find_first_not_of("0123456789") == std::string::npos;
         });
}

void merge_items(YamlValue& list, YamlValue over) {
  for (YamlEntry& entry : over.entries) {
    const size_t index = std::stoul(entry.key), count = list.items.size();
    if (index >= count) {
      throw InputError(entry.location.text() + ": there is no entry " + entry.key + ": the list has " +
                       (count == 0   ? "none"
                        : count == 1 ? "one, entry 0"
                                     : std::to_string(count) + ", entries 0 to " + std::to_string(count - 1)));
    }
    merge_yaml(list.items[index], std::move(entry.value));
  }
}

}  // namespace

void merge_yaml(YamlValue& base, YamlValue over) {
  if (base.kind == YamlValue::Kind::List && names_items(over)) {
    merge_items(base, std::move(over));
    return;
  }
  if (base.kind != YamlValue::Kind::Map || over.kind != YamlValue::Kind::Map) {
    base = std::move(over);
    return;
  }
  for (YamlEntry& entry : over.entries) {
    if (YamlValue* there = base.find(entry.key)) {
      merge_yaml(*there, std::move(entry.value));
    } else {
      base.entries.push_back(std::move(entry));
    }
  }
}

std::string quoted(const std::string& text) {
  constexpr size_t kLongest = 80;
  std::string shown = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    if (shown.size() > kLongest) return shown + "...\"";
    if (is_control(text[i])) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(text[i]));
      shown += escaped;
    } else {
      shown += text[i];
    }
  }
  return shown + "\"";
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), is_control);
}

}  // namespace meshtrain
