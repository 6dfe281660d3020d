#pragma once

#include <string>

namespace meshtrain::testing {

/// The message of what `call` throws as an Error; empty when it throws nothing of the kind.
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
