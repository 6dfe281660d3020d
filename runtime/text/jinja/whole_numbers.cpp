#include "runtime/text/jinja/whole_numbers.h"

#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

#include "mesh/base/unicode/utf8.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

/// Returns the text with digits of all scripts as 0 to 9: they stand in runs of ten.
std::string with_plain_digits(std::string_view text) {
  std::string plain;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* const begin = at;
    const uint32_t point = next_code_point(at);
    if (point < 0x80 || !is_python_digit(point)) {
      plain.append(begin, at);
      continue;
    }
    uint32_t zero = point;
    while (is_python_digit(zero - 1)) --zero;
    plain += static_cast<char>('0' + (point - zero) % 10);
  }
  return plain;
}

/// Removes underscores between digits. Returns false when an underscore is elsewhere.
bool remove_underscores(std::string& text) {
  const auto is_digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && (i == 0 || !is_digit(i - 1) || !is_digit(i + 1))) return false;
  }
  std::erase(text, '_');
  return true;
}

}  // namespace

std::optional<int64_t> parse_whole(std::string_view given) {
  constexpr const char* kTooLarge = "a whole number has more than 64 bits";
  std::string text = with_plain_digits(strip(given));
  if (!remove_underscores(text) || text.starts_with("+-")) return std::nullopt;
  if (text.starts_with('+')) text.erase(0, 1);
  const char *const begin = text.data(), *const end = begin + text.size();
  int64_t whole = 0;
  if (const auto found = std::from_chars(begin, end, whole); found.ptr == end) {
    if (found.ec == std::errc::result_out_of_range) throw Failure(kTooLarge);
    if (found.ec == std::errc()) return whole;
  }
  double number = 0;
  const auto found = std::from_chars(begin, end, number);
  if (found.ec != std::errc() || found.ptr != end || !std::isfinite(number)) return std::nullopt;
  if (std::fabs(number) >= 9.2e18) throw Failure(kTooLarge);
  return static_cast<int64_t>(number);
}

}  // namespace meshtrain::jinja
