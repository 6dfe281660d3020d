#include "runtime/text/jinja/texts.h"

#include <algorithm>
#include <cstring>

#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/jinja/failure.h"

namespace meshtrain::jinja {
namespace {

/// Returns true for code points that Python's str.isspace() takes for spaces.
bool is_python_space(uint32_t point) {
  return is_space(point) || (point >= 0x1C && point <= 0x1F);
}

bool is_of(uint32_t point, const std::string* set) {
  if (set == nullptr) return is_python_space(point);
  for (const char *at = set->data(), *end = at + set->size(); at < end;) {
    if (next_code_point(at) == point) return true;
  }
  return false;
}

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

char in_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

char in_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Throws Failure for a character beyond ASCII that has one of `categories`, letters with another case, or is one of
/// the few others that have one.
void check_case(std::string_view text, CategoryMask categories) {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const uint32_t point = next_code_point(at);
    if (point < 0x80) continue;
    const bool odd = point == 0x345 || (point >= 0x24B6 && point <= 0x24E9);
    if (!odd && (categories >> category_of(point) & 1) == 0) continue;
    throw Failure("changing the case of letters beyond ASCII is not supported");
  }
}

CategoryMask small_letters() {
  static const CategoryMask mask = categories_named("Ll") | categories_named("Lt") | categories_named("Nl");
  return mask;
}

CategoryMask capital_letters() {
  static const CategoryMask mask = categories_named("Lu") | categories_named("Lt") | categories_named("Nl");
  return mask;
}

void check_separator(const std::string* separator) {
  if (separator != nullptr && separator->empty()) throw Failure("a separator is empty");
}

}  // namespace

size_t length_of(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> found;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* const begin = at;
    next_code_point(at);
    found.emplace_back(begin, static_cast<size_t>(at - begin));
  }
  return found;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string::npos;
  if (part.empty()) return from;
  const void* const found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string_view strip_left(std::string_view text, const std::string* set) {
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    const char* next = at;
    if (!is_of(next_code_point(next), set)) break;
    at = next;
  }
  return {at, static_cast<size_t>(end - at)};
}

std::string_view strip_right(std::string_view text, const std::string* set) {
  const char *const begin = text.data(), *at = begin + text.size();
  while (at > begin) {
    const char* before = at;
    if (!is_of(previous_code_point(before), set)) break;
    at = before;
  }
  return {begin, static_cast<size_t>(at - begin)};
}

std::string_view strip(std::string_view text, const std::string* set) {
  return strip_left(strip_right(text, set), set);
}

std::vector<std::string_view> split(std::string_view text, const std::string* separator, int64_t most) {
  check_separator(separator);
  std::vector<std::string_view> parts;
  const auto may_split = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (separator == nullptr) {
    for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
      if (!may_split()) {
        parts.push_back(text);
        return parts;
      }
      const char *at = text.data(), *const end = at + text.size(), *next = at;
      while (at < end && !is_python_space(next_code_point(next))) at = next;
      parts.push_back(text.substr(0, static_cast<size_t>(at - text.data())));
      text.remove_prefix(parts.back().size());
    }
    return parts;
  }
  size_t begin = 0;
  while (may_split()) {
    const size_t found = find_text(text, *separator, begin);
    if (found == std::string::npos) break;
    parts.push_back(text.substr(begin, found - begin));
    begin = found + separator->size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_from_right(std::string_view text, const std::string* separator, int64_t most) {
  if (most < 0) return split(text, separator, most);
  check_separator(separator);
  std::vector<std::string_view> parts;
  if (separator == nullptr) {
    for (text = strip_right(text); !text.empty(); text = strip_right(text)) {
      if (static_cast<int64_t>(parts.size()) == most) {
        parts.push_back(text);
        break;
      }
      const char *const begin = text.data(), *at = begin + text.size(), *before = at;
      while (at > begin && !is_python_space(previous_code_point(before))) at = before;
      parts.push_back(text.substr(static_cast<size_t>(at - begin)));
      text = text.substr(0, static_cast<size_t>(at - begin));
    }
  } else {
    while (static_cast<int64_t>(parts.size()) < most) {
      const size_t found = text.rfind(*separator);
      if (found == std::string::npos) break;
      parts.push_back(text.substr(found + separator->size()));
      text = text.substr(0, found);
    }
    parts.push_back(text);
  }
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  const char *begin = text.data(), *at = begin, *const end = begin + text.size();
  while (at < end) {
    const char* const stop = at;
    const uint32_t point = next_code_point(at);
    const bool ends = (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
                      point == 0x2028 || point == 0x2029;
    if (!ends) continue;
    if (point == '\r' && at < end && *at == '\n') ++at;
    lines.emplace_back(begin, static_cast<size_t>(stop - begin));
    begin = at;
  }
  if (begin < end) lines.emplace_back(begin, static_cast<size_t>(end - begin));
  return lines;
}

std::string replace(std::string_view text, const std::string& old, const std::string& by, int64_t most) {
  std::string replaced;
  if (old.empty()) {
    for (const std::string_view character : characters(text)) {
      if (most != 0) replaced += by, --most;
      replaced += character;
    }
    return most != 0 ? replaced + by : replaced;
  }
  size_t begin = 0;
  for (; most != 0; --most) {
    const size_t found = find_text(text, old, begin);
    if (found == std::string::npos) break;
    replaced.append(text.substr(begin, found - begin)).append(by);
    begin = found + old.size();
  }
  return replaced.append(text.substr(begin));
}

int64_t replaced_size(std::string_view text, const std::string& old, const std::string& by, int64_t most) {
  const auto size = static_cast<int64_t>(text.size()), more = static_cast<int64_t>(by.size());
  if (old.empty()) return size + (static_cast<int64_t>(length_of(text)) + 1) * more;
  int64_t found = 0;
  for (size_t at = find_text(text, old); at != std::string::npos && found != most; ++found) {
    at = find_text(text, old, at + old.size());
  }
  return size + found * (more - static_cast<int64_t>(old.size()));
}

std::string upper(std::string_view text) {
  check_case(text, small_letters());
  std::string changed(text);
  std::ranges::transform(changed, changed.begin(), in_upper);
  return changed;
}

std::string lower(std::string_view text) {
  check_case(text, capital_letters());
  std::string changed(text);
  std::ranges::transform(changed, changed.begin(), in_lower);
  return changed;
}

std::string capitalize(std::string_view text) {
  check_case(characters(text).empty() ? "" : characters(text)[0], small_letters());
  std::string changed = lower(text);
  if (!changed.empty()) changed[0] = in_upper(changed[0]);
  return changed;
}

std::string title(std::string_view text) {
  check_case(text, small_letters());
  std::string changed = lower(text);
  bool in_word = false;
  for (char& c : changed) {
    if (!in_word) c = in_upper(c);
    in_word = is_ascii_letter(c);
  }
  return changed;
}

}  // namespace meshtrain::jinja
