#pragma once

#include <algorithm>
#include <string>

namespace meshtrain {

/// Returns `text` with each capital of ASCII replaced by its small letter.
inline std::string lower_case(std::string text) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  std::transform(text.begin(), text.end(), text.begin(), lower);
  return text;
}

}  // namespace meshtrain
