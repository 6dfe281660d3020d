#include "runtime/program/yaml/scalar_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>

#include "mesh/base/files/lower_case.h"

namespace meshtrain {
namespace {

/// Returns false when YAML, 1.1 or 1.2, reads `value` as anything but a text.
bool looks_like_text(const std::string& value) {
  static const std::set<std::string> taken = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  return !taken.contains(lower_case(value));
}

template <class T>
std::string list_text(const std::vector<T>& value) {
  std::string text;
  for (const T& each : value) text += (text.empty() ? "" : ", ") + scalar_text(each);
  return "[" + text + "]";
}

bool is_plain(const std::string& value) {
  const auto is_letter = [](unsigned char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_safe = [&](unsigned char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '/' || c == '.' || c == '-';
  };
  return !value.empty() && (is_letter(value[0]) || value[0] == '/') && looks_like_text(value) &&
         std::all_of(value.begin(), value.end(), is_safe);
}

}  // namespace

std::string scalar_text(int64_t value) {
  return std::to_string(value);
}

std::string scalar_text(double value) {
  constexpr double kMostPlain = 1e15;  // whole numbers below it are written without an exponent
  if (value == std::trunc(value) && std::abs(value) < kMostPlain && !(value == 0 && std::signbit(value))) {
    return std::to_string(static_cast<int64_t>(value));
  }
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::general).ptr};
}

std::string scalar_text(bool value) {
  return value ? "true" : "false";
}

std::string scalar_text(const std::string& value) {
  if (is_plain(value)) return value;
  std::string text = "\"";
  for (const char character : value) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      text += escaped;
    } else {
      if (character == '"' || character == '\\') text += '\\';
      text += character;
    }
  }
  return text + '"';
}

std::string scalar_text(const std::filesystem::path& value) {
  return value.empty() ? "null" : scalar_text(value.string());
}

std::string scalar_text(const std::optional<int64_t>& value) {
  return value ? scalar_text(*value) : "null";
}

std::string scalar_text(const std::optional<double>& value) {
  return value ? scalar_text(*value) : "null";
}

std::string scalar_text(const std::array<double, 2>& value) {
  return "[" + scalar_text(value[0]) + ", " + scalar_text(value[1]) + "]";
}

std::string scalar_text(const std::vector<std::string>& value) {
  return list_text(value);
}

std::string scalar_text(const std::vector<int64_t>& value) {
  return list_text(value);
}

std::string scalar_text(const std::vector<double>& value) {
  return list_text(value);
}

std::string scalar_text(const std::map<std::string, int64_t>& value) {
  std::string text;
  for (const auto& [axis, size] : value) {
    text += (text.empty() ? "" : ", ") + axis + ": " + (size < 1 ? "auto" : scalar_text(size));
  }
  return "{" + text + "}";
}

}  // namespace meshtrain
