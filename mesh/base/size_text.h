#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace meshtrain {

/// Returns a number of bytes for a message, "12.3 MiB", in KiB, MiB or GiB, with one decimal unless that is 0.
inline std::string size_text(int64_t bytes) {
  double size = static_cast<double>(bytes) / 1024;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  char number[32];
  std::snprintf(number, sizeof number, "%.1f", size);
  std::string text = number;
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text + " " + unit;
}

/// Formats 1234567 as "1,234,567".
inline std::string with_separators(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool begins = text.empty() || text == "-";
    if (!begins && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

/// Formats (1234, "piece") as "1,234 pieces", (1, "piece") as "1 piece". `plural`: the word of any other number than
/// one; empty: with an s.
template <std::integral Count>
std::string counted(Count count, const std::string& word, const std::string& plural = "") {
  return with_separators(static_cast<int64_t>(count)) + " " +
         (count == 1       ? word
          : plural.empty() ? word + "s"
                           : plural);
}

/// Returns "a, b and c".
inline std::string enumerated(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return text;
}

/// Formats seconds as "34:05" or "2:34:05".
inline std::string duration(double seconds) {
  const auto rounded = static_cast<int64_t>(std::llround(seconds));
  const auto two_digits = [](int64_t value) { return (value < 10 ? ":0" : ":") + std::to_string(value); };
  const std::string minutes =
      rounded < 3600 ? std::to_string(rounded / 60) : std::to_string(rounded / 3600) + two_digits(rounded / 60 % 60);
  return minutes + two_digits(rounded % 60);
}

}  // namespace meshtrain
