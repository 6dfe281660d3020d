#pragma once

#include <string>

namespace meshtrain::testing {

/// Returns the message of the Error that `call` throws; empty when it throws none.
template <typename Error, typename Call>
std::string message(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Returns true for a message of one line, or of one and the items of a list, in lines that two spaces indent.
inline bool is_one_message(const std::string& text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
    if (text.compare(at, 3, "\n  ") != 0) return false;
  }
  return true;
}

}  // namespace meshtrain::testing
