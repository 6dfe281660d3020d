#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

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

}  // namespace meshtrain
