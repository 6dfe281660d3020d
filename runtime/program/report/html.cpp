#include "runtime/program/report/html.h"

namespace meshtrain {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Returns the length of the character that `text` begins with; 0 when it is not valid UTF-8, or one that HTML must not
/// have.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : first == '\n' || first == '\t' ? 1 : 0;
  if (first >= 0xc2 && first < 0xe0) return follows(1) && (first != 0xc2 || byte(1) >= 0xa0) ? 2 : 0;
  if (first >= 0xe0 && first < 0xf0) {
    const bool overlong = first == 0xe0 && byte(1) < 0xa0, surrogate = first == 0xed && byte(1) >= 0xa0;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const bool overlong = first == 0xf0 && byte(1) < 0x90, beyond = first == 0xf4 && byte(1) >= 0x90;
    return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string html;
  html.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const size_t length = character_length(text);
    switch (text.front()) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += length == 0 ? kReplacement : text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return html;
}

}  // namespace meshtrain
