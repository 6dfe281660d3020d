#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace meshtrain {

/// A JSON object that is read key by key, with one type each, and that can refuse the keys which were not read. Every
/// error is an InputError "FILE: KEY ...". A null value counts as an absent key, unless stated.
class ConfigReader {
 public:
  /// Reads `file`. Throws InputError when it cannot be read or is not a JSON object.
  explicit ConfigReader(const std::filesystem::path& file);
  /// Returns the object under a key that is present; errors name its keys "KEY.INNER". Marks `key` as read.
  ConfigReader object(const std::string& key);

  /// Returns true when `key` is present and not null. Does not mark it as read.
  bool has(const std::string& key) const;
  /// Returns true when `key` is present, null or not. Does not mark it as read.
  bool mentions(const std::string& key) const { return object_.contains(key); }
  /// Returns the value of a key that is present, as it is. Marks it as read.
  const nlohmann::json& value(const std::string& key);

  /// Returns a whole number of at least `least` and below 2^31.
  int64_t integer(const std::string& key, int64_t least = 1);
  int64_t integer_or(const std::string& key, int64_t absent, int64_t least = 1);
  /// Returns a finite number above zero.
  double number(const std::string& key);
  double number_or(const std::string& key, double absent);
  /// Returns a list of such numbers, not empty.
  std::vector<double> numbers(const std::string& key);
  std::string text(const std::string& key);
  bool boolean_or(const std::string& key, bool absent);

  /// Marks `key`, present or not, as read, because it does not matter.
  void ignore(const std::string& key) { keys_read_.insert(key); }
  /// Returns the keys that were not read and are not null.
  std::vector<std::string> unread() const;
  /// Throws InputError for the first of unread().
  void refuse_others() const;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const;

 private:
  ConfigReader(std::filesystem::path file, std::string prefix, nlohmann::json object);

  std::filesystem::path file_;
  std::string prefix_;  // "rope_scaling." for keys inside that object
  nlohmann::json object_;
  std::set<std::string> keys_read_;
};

/// Returns a value on one line for a message, cut when it is long.
std::string shown(const nlohmann::json& value);

}  // namespace meshtrain
