#include "runtime/program/hf/config_reader.h"

#include <cmath>
#include <limits>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"

namespace meshtrain {

using nlohmann::json;

ConfigReader::ConfigReader(const std::filesystem::path& file) : file_(file), object_(read_json_object(file)) {}

ConfigReader::ConfigReader(std::filesystem::path file, std::string prefix, json object)
    : file_(std::move(file)), prefix_(std::move(prefix)), object_(std::move(object)) {}

ConfigReader ConfigReader::object(const std::string& key) {
  const json& found = value(key);
  if (!found.is_object()) fail(key, "is " + shown(found) + ", not a JSON object");
  return ConfigReader(file_, prefix_ + key + ".", found);
}

bool ConfigReader::has(const std::string& key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const json& ConfigReader::value(const std::string& key) {
  keys_read_.insert(key);
  if (!has(key)) fail(key, "is missing");
  return object_.at(key);
}

int64_t ConfigReader::integer(const std::string& key, int64_t least) {
  const json& found = value(key);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool fits = found.is_number_unsigned() ? found.get<uint64_t>() <= uint64_t{kMost} : found.is_number_integer();
  if (!fits || found.get<int64_t>() < least) {
    fail(key, "is " + shown(found) + ", not a whole number of at least " + std::to_string(least));
  }
  return found.get<int64_t>();
}

int64_t ConfigReader::integer_or(const std::string& key, int64_t absent, int64_t least) {
  keys_read_.insert(key);
  return has(key) ? integer(key, least) : absent;
}

double ConfigReader::number(const std::string& key) {
  const json& found = value(key);
  if (!found.is_number() || !std::isfinite(found.get<double>()) || found.get<double>() <= 0) {
    fail(key, "is " + shown(found) + ", not a number above zero");
  }
  return found.get<double>();
}

double ConfigReader::number_or(const std::string& key, double absent) {
  keys_read_.insert(key);
  return has(key) ? number(key) : absent;
}

std::vector<double> ConfigReader::numbers(const std::string& key) {
  const json& found = value(key);
  if (!found.is_array() || found.empty()) fail(key, "is " + shown(found) + ", not a list of numbers");
  std::vector<double> all;
  for (const json& each : found) {
    if (!each.is_number() || !std::isfinite(each.get<double>()) || each.get<double>() <= 0) {
      fail(key, "has " + shown(each) + ", not a number above zero");
    }
    all.push_back(each.get<double>());
  }
  return all;
}

std::string ConfigReader::text(const std::string& key) {
  const json& found = value(key);
  if (!found.is_string()) fail(key, "is " + shown(found) + ", not a string");
  return found.get<std::string>();
}

bool ConfigReader::boolean_or(const std::string& key, bool absent) {
  keys_read_.insert(key);
  if (!has(key)) return absent;
  const json& found = value(key);
  if (!found.is_boolean()) fail(key, "is " + shown(found) + ", not true or false");
  return found.get<bool>();
}

std::vector<std::string> ConfigReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, found] : object_.items()) {
    if (!keys_read_.contains(key) && !found.is_null()) keys.push_back(key);
  }
  return keys;
}

void ConfigReader::refuse_others() const {
  for (const std::string& key : unread()) {
    fail(key,
         "(" + shown(object_.at(key)) + ") is not known here and could change the numbers: remove it if it does not");
  }
}

void ConfigReader::fail(const std::string& key, const std::string& what) const {
  throw InputError(file_.string() + ": " + prefix_ + key + " " + what);
}

std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  std::string text = value.dump();
  if (text.size() > kMost) text.replace(kMost, std::string::npos, "...");
  return text;
}

}  // namespace meshtrain
