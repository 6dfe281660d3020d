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

}  // namespace meshtrain::testing
