#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace meshtrain {

/// A JSON object whose values are asked for by key, one type each, and which can say at the end which keys nobody
/// asked for. Every error is an InputError "FILE: KEY ...". A null value is the same as an absent key, unless said.
class ConfigReader {
 public:
  /// Throws InputError when `file` cannot be read or is no JSON object.
  explicit ConfigReader(const std::filesystem::path& file);
  /// The object under a key that is present; its keys are named "KEY.INNER" in errors. Counts as asking for `key`.
  ConfigReader object(const std::string& key);

  /// Present and not null. Does not count as asking.
  bool has(const std::string& key) const;
  /// Present, null or not. Does not count as asking.
  bool mentions(const std::string& key) const { return object_.contains(key); }
  /// The value of a key that is present, as it stands; counts as asking.
  const nlohmann::json& value(const std::string& key);

  /// A whole number of at least `least` and below 2^31.
  int64_t integer(const std::string& key, int64_t least = 1);
  int64_t integer_or(const std::string& key, int64_t absent, int64_t least = 1);
  /// A finite number above zero.
  double number(const std::string& key);
  double number_or(const std::string& key, double absent);
  std::string text(const std::string& key);
  bool boolean_or(const std::string& key, bool absent);

  /// The key, whether present or not, is known and of no importance.
  void ignore(const std::string& key) { asked_.insert(key); }
  /// Throws for the first key that nobody asked for and that is not null.
  void refuse_others() const;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const;

 private:
  ConfigReader(std::filesystem::path file, std::string prefix, nlohmann::json object);

  std::filesystem::path file_;
  std::string prefix_;  // "rope_scaling." for keys inside that object
  nlohmann::json object_;
  std::set<std::string> asked_;
};

/// A value on one line for a message, cut when it is long.
std::string shown(const nlohmann::json& value);

}  // namespace meshtrain
