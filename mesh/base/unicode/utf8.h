#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Functions for UTF-8. All but the first three require valid text.
namespace meshtrain {

constexpr uint32_t kCodePoints = 0x110000;

/// Returns how many bytes at the beginning of `text` are valid UTF-8: all of them, or those before the first that is
/// not.
size_t valid_utf8(std::string_view text);

/// Returns how many bytes of `text` belong to no character.
size_t invalid_utf8(std::string_view text);

/// Returns `text` with invalid bytes replaced by U+FFFD, one for each maximal part of a character (Unicode, chapter 3,
/// table 3-8), as Python's bytes.decode("utf-8", errors="replace") does.
std::string with_replacements(std::string_view text);

void append_utf8(uint32_t code_point, std::string& text);

/// Returns the code point at `at` and moves `at` to the next one. `at` must be the beginning of a character inside the
/// text; otherwise bytes beyond the text are read.
inline uint32_t next_code_point(const char*& at) {
  const auto byte = [](char c) { return static_cast<uint32_t>(static_cast<unsigned char>(c)); };
  const uint32_t first = byte(at[0]);
  if (first < 0x80) return ++at, first;
  if (first < 0xE0) {
    const uint32_t point = (first & 0x1F) << 6 | (byte(at[1]) & 0x3F);
    return at += 2, point;
  }
  if (first < 0xF0) {
    const uint32_t point = (first & 0x0F) << 12 | (byte(at[1]) & 0x3F) << 6 | (byte(at[2]) & 0x3F);
    return at += 3, point;
  }
  const uint32_t point =
      (first & 0x07) << 18 | (byte(at[1]) & 0x3F) << 12 | (byte(at[2]) & 0x3F) << 6 | (byte(at[3]) & 0x3F);
  return at += 4, point;
}

/// Returns the code point that ends at `at` and moves `at` to its beginning.
inline uint32_t previous_code_point(const char*& at) {
  do --at;
  while ((static_cast<unsigned char>(*at) & 0xC0) == 0x80);
  const char* begin = at;
  return next_code_point(begin);
}

}  // namespace meshtrain
