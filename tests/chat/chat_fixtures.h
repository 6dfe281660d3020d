#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/files.h"

namespace meshtrain::testing {

using OrderedJson = nlohmann::ordered_json;

inline std::filesystem::path chat_fixture(const std::string& name) {
  return source_folder() + "/tests/chat/fixtures/" + name;
}

inline std::filesystem::path template_fixture(const std::string& name) {
  return chat_fixture("templates/" + name + ".jinja");
}

/// Returns a file that fixtures/generate.py writes.
inline const OrderedJson& chat_json(const std::string& name) {
  static std::map<std::string, OrderedJson> read;
  const auto found = read.find(name);
  if (found != read.end()) return found->second;
  return read[name] = OrderedJson::parse(content(chat_fixture(name)));
}

}  // namespace meshtrain::testing
