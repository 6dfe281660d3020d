#include "runtime/text/jinja/whole_numbers.h"

#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

bool is_digit(uint32_t point) {
  static const CategoryMask digits = categories_named("Nd");
  return (digits >> category_of(point) & 1) != 0;
}

/// Returns the text with digits of all scripts as 0 to 9: they stand in runs of ten.
std::string with_plain_digits(std::string_view text) {
  std::string plain;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* const begin = at;
    const uint32_t point = next_code_point(at);
    if (point < 0x80 || !is_digit(point)) {
      plain.append(begin, at);
      continue;
    }
    uint32_t zero = point;
    while (is_digit(zero - 1)) --zero;
    plain += static_cast<char>('0' + (point - zero) % 10);
  }
  return plain;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Removes underscores between letters or digits. Returns false when there are others.
bool remove_underscores(std::string& text) {
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      kept += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_letter_or_digit(text[i - 1]) || !is_letter_or_digit(text[i + 1])) {
      return false;
    }
  }
  text = kept;
  return true;
}

/// Returns the base that a prefix names; 0 for none.
int base_of_prefix(std::string_view text) {
  if (text.size() < 2 || text[0] != '0') return 0;
  const char letter = static_cast<char>(text[1] | 0x20);
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

}  // namespace

std::optional<int64_t> parse_whole(std::string_view given, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string text = with_plain_digits(strip(given));
  if (!remove_underscores(text)) return std::nullopt;
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.erase(0, 1);
  const int prefixed = base_of_prefix(text);
  if (prefixed != 0 && (base == 0 || base == prefixed)) {
    text.erase(0, 2);
    base = prefixed;
  } else if (base == 0) {
    base = 10;
    if (text.starts_with('0') && text.find_first_not_of('0') != std::string::npos) return std::nullopt;
  }
  if (text.empty() || !is_letter_or_digit(text.front())) return std::nullopt;
  if (is_negative) text.insert(0, 1, '-');
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, static_cast<int>(base));
  if (end != text.data() + text.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) throw Failure("a whole number has more than 64 bits");
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<int64_t> parse_truncated(std::string_view given) {
  std::string text = with_plain_digits(strip(given));
  if (!remove_underscores(text)) return std::nullopt;
  if (text.starts_with('+'))
    text.erase(0, 1);
  else if (text.starts_with("-+"))
    return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  if (given.find('+') < given.find('-') && text.starts_with('-')) return std::nullopt;  // "+-1"
  if (std::fabs(number) >= 9.2e18) throw Failure("a whole number has more than 64 bits");
  return static_cast<int64_t>(number);
}

}  // namespace meshtrain::jinja
