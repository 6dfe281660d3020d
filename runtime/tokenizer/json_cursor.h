#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace meshtrain {

/// A value inside a JSON document that knows its file and path: every error is an InputError "FILE: model.merges[3]
/// ...". The document outlives it.
class JsonCursor {
 public:
  JsonCursor(std::string file, const nlohmann::json& document) : file_(std::move(file)), value_(&document) {}

  /// The member `key` of an object. Absent and null are the same; at() throws for them.
  JsonCursor at(const std::string& key) const;
  std::optional<JsonCursor> find(const std::string& key) const;
  /// Elements of an array.
  size_t size() const;
  JsonCursor at(size_t index) const;

  std::string text() const;
  bool flag() const;
  /// A token id, below 2^32 - 1.
  uint32_t id() const;
  std::string text_or(const std::string& key, const std::string& absent) const;
  bool flag_or(const std::string& key, bool absent) const;

  /// An object's "type", one of `supported` (named in the error, separated by commas).
  std::string type_of(const std::string& supported) const;

  const nlohmann::json& value() const { return *value_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  JsonCursor(const JsonCursor& parent, const std::string& step, const nlohmann::json& value);

  std::string file_, path_;
  const nlohmann::json* value_;
};

}  // namespace meshtrain
