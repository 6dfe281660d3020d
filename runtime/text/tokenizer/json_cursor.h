#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace meshtrain {

/// A value inside a JSON document that knows its file and path: every error is an InputError "FILE: model.merges[3]
/// ...". The document must outlive it.
class JsonCursor {
 public:
  JsonCursor(std::string file, const nlohmann::json& document) : file_(std::move(file)), value_(&document) {}

  /// Return the member `key` of an object. An absent member is the same as null: at() throws, find() returns
  /// std::nullopt.
  JsonCursor at(const std::string& key) const;
  std::optional<JsonCursor> find(const std::string& key) const;
  /// Returns the number of elements of an array.
  size_t size() const;
  JsonCursor at(size_t index) const;

  std::string text() const;
  bool flag() const;
  /// Returns a token id, below 2^32 - 1.
  uint32_t id() const;
  std::string text_or(const std::string& key, const std::string& absent) const;
  bool flag_or(const std::string& key, bool absent) const;

  /// Returns an object's "type". Throws unless it is one of `supported`, names separated by commas, which the error
  /// lists.
  std::string type_of(const std::string& supported) const;

  const nlohmann::json& value() const { return *value_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  JsonCursor(const JsonCursor& parent, const std::string& step, const nlohmann::json& value);

  std::string file_, path_;
  const nlohmann::json* value_;
};

}  // namespace meshtrain
