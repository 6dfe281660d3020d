#include "runtime/text/tokenizer/json_cursor.h"

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"

namespace meshtrain {

using nlohmann::json;

namespace {

std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  if (value.is_structured() && value.size() > 8) return value.is_array() ? "a list" : "an object";
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

bool names(const std::string& list, const std::string& name) {
  return !name.empty() && (", " + list + ",").find(", " + name + ",") != std::string::npos;
}

}  // namespace

JsonCursor::JsonCursor(const JsonCursor& parent, const std::string& step, const json& value)
    : file_(parent.file_),
      path_(parent.path_ + (parent.path_.empty() || step[0] == '[' ? "" : ".") + step),
      value_(&value) {}

std::optional<JsonCursor> JsonCursor::find(const std::string& key) const {
  if (!value_->is_object()) fail("is " + shown(*value_) + ", not an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonCursor(*this, key, *found);
}

JsonCursor JsonCursor::at(const std::string& key) const {
  const std::optional<JsonCursor> found = find(key);
  if (!found) fail((path_.empty() ? "" : "has ") + std::string("no ") + key);
  return *found;
}

size_t JsonCursor::size() const {
  if (!value_->is_array()) fail("is " + shown(*value_) + ", not a list");
  return value_->size();
}

JsonCursor JsonCursor::at(size_t index) const {
  return JsonCursor(*this, "[" + std::to_string(index) + "]", (*value_)[index]);
}

std::string JsonCursor::text() const {
  if (!value_->is_string()) fail("is " + shown(*value_) + ", not a string");
  return value_->get<std::string>();
}

bool JsonCursor::flag() const {
  if (!value_->is_boolean()) fail("is " + shown(*value_) + ", not true or false");
  return value_->get<bool>();
}

uint32_t JsonCursor::id() const {
  constexpr uint64_t kMost = 0xFFFFFFFE;
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > kMost) {
    fail("is " + shown(*value_) + ", not a token id");
  }
  return value_->get<uint32_t>();
}

std::string JsonCursor::text_or(const std::string& key, const std::string& absent) const {
  const std::optional<JsonCursor> found = find(key);
  return found ? found->text() : absent;
}

bool JsonCursor::flag_or(const std::string& key, bool absent) const {
  const std::optional<JsonCursor> found = find(key);
  return found ? found->flag() : absent;
}

std::string JsonCursor::type_of(const std::string& supported) const {
  const JsonCursor type = at("type");
  const std::string name = type.text();
  if (!names(supported, name))
    type.fail("is " + shown(*type.value_) + ", which is not supported; supported are: " + supported);
  return name;
}

void JsonCursor::fail(const std::string& what) const {
  std::string line = (path_.empty() ? "" : path_ + " ") + what;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  throw InputError(file_ + ": " + line);
}

}  // namespace meshtrain
