#include "mesh/base/unicode/utf8.h"

#include <cstring>

namespace meshtrain {
namespace {

struct Part {
  size_t bytes = 1;
  bool full = false;
};

// Returns the character at the beginning of `text`, or the maximal part of one, at least a byte.
Part character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;   // no longer than it has to be
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;  // no surrogate, below 0x110000
  size_t i = 1;
  for (; i < length && i < text.size(); ++i) {
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) break;
  }
  return {i, i == length};
}

}  // namespace

size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Part part = character(text.substr(at));
    if (!part.full) return at;
    at += part.bytes;
  }
  return at;
}

size_t invalid_utf8(std::string_view text) {
  size_t invalid = 0;
  while (true) {
    text.remove_prefix(valid_utf8(text));
    if (text.empty()) return invalid;
    const size_t bytes = character(text).bytes;
    invalid += bytes;
    text.remove_prefix(bytes);
  }
}

std::string with_replacements(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = valid_utf8(text);
    result += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    result += "\xEF\xBF\xBD";
    text.remove_prefix(character(text).bytes);
  }
  return result;
}

void append_utf8(uint32_t c, std::string& text) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      add(0xE0 | c >> 12);
    } else {
      add(0xF0 | c >> 18);
      add(0x80 | (c >> 12 & 0x3F));
    }
    add(0x80 | (c >> 6 & 0x3F));
  }
  add(0x80 | (c & 0x3F));
}

}  // namespace meshtrain
