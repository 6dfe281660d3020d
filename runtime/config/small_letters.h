#pragma once

#include <algorithm>
#include <string>

namespace meshtrain {

/// `text` with small letters in the place of the capitals of ASCII.
inline std::string small_letters(std::string text) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  std::transform(text.begin(), text.end(), text.begin(), small);
  return text;
}

}  // namespace meshtrain
