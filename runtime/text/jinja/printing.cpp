#include "runtime/text/jinja/printing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/jinja/failure.h"

namespace meshtrain::jinja {
namespace {

void append_hex(std::string& text, uint32_t number, int digits) {
  constexpr const char* kDigits = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += kDigits[number >> shift & 15];
}

/// Returns repr(number): the shortest digits that give the number back, with an exponent below 1e-4 and from 1e16 on.
std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  const double size = std::fabs(number);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

bool is_printable(uint32_t point) {
  static const CategoryMask hidden =
      categories_named("C") | categories_named("Zl") | categories_named("Zp") | categories_named("Zs");
  return point == ' ' || (hidden >> category_of(point) & 1) == 0;
}

std::string quoted_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos,
             has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* const begin = at;
    const uint32_t point = next_code_point(at);
    if (point == static_cast<unsigned char>(quote) || point == '\\') {
      quoted += '\\';
      quoted += static_cast<char>(point);
    } else if (point == '\n' || point == '\r' || point == '\t') {
      quoted += point == '\n' ? "\\n" : point == '\r' ? "\\r" : "\\t";
    } else if (is_printable(point)) {
      quoted.append(begin, at);
    } else {
      quoted += point < 0x100 ? "\\x" : point < 0x10000 ? "\\u" : "\\U";
      append_hex(quoted, point, point < 0x100 ? 2 : point < 0x10000 ? 4 : 8);
    }
  }
  return quoted + quote;
}

void append_json_text(std::string& json, std::string_view text, bool ensure_ascii) {
  json += '"';
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* const begin = at;
    const uint32_t point = next_code_point(at);
    switch (point) {
      case '"':
        json += "\\\"";
        break;
      case '\\':
        json += "\\\\";
        break;
      case '\n':
        json += "\\n";
        break;
      case '\r':
        json += "\\r";
        break;
      case '\t':
        json += "\\t";
        break;
      case '\b':
        json += "\\b";
        break;
      case '\f':
        json += "\\f";
        break;
      default:
        if (point >= 0x10000 && ensure_ascii) {
          json += "\\u", append_hex(json, 0xD800 + ((point - 0x10000) >> 10), 4);
          json += "\\u", append_hex(json, 0xDC00 + ((point - 0x10000) & 0x3FF), 4);
        } else if (point < 0x20 || (ensure_ascii && point >= 0x7F)) {
          json += "\\u", append_hex(json, point, 4);
        } else {
          json.append(begin, at);
        }
    }
  }
  json += '"';
}

/// The output of one value. What is appended is charged to the budget as it grows.
class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    const size_t before = text_.size();
    budget_.work(kNodeWork);
    if (value.is_none()) {
      text_ += "null";
    } else if (value.is_bool()) {
      text_ += value.is_true() ? "true" : "false";
    } else if (value.is_int()) {
      text_ += std::to_string(value.whole());
    } else if (value.is_float()) {
      const double number = value.number();
      text_ += std::isnan(number)   ? "NaN"
               : std::isinf(number) ? number < 0 ? "-Infinity" : "Infinity"
                                    : float_text(number);
    } else if (value.is_text()) {
      budget_.make(static_cast<int64_t>(value.text().size()));
      append_json_text(text_, value.text(), style_.ensure_ascii);
    } else if (value.is_list()) {
      write_list(value.list(), level);
      return;
    } else if (value.is_dict()) {
      write_dict(value.dict(), level);
      return;
    } else if (value.is_undefined()) {
      throw Failure(*value.undefined().hint);
    } else {
      throw Failure(value.kind() + " cannot be written as JSON");
    }
    budget_.make(static_cast<int64_t>(text_.size() - before));
  }

  std::string take() { return std::move(text_); }

 private:
  void write_list(const List& list, int level) {
    if (list.values.empty()) {
      text_ += "[]";
      return;
    }
    text_ += '[';
    for (size_t i = 0; i < list.values.size(); ++i) {
      begin_item(i, level + 1);
      write(list.values[i], level + 1);
    }
    end_items(level);
    text_ += ']';
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.size() == 0) {
      text_ += "{}";
      return;
    }
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
      std::ranges::sort(entries, {}, [](const auto* entry) -> const std::string& { return entry->first; });
    text_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      begin_item(i, level + 1);
      append_json_text(text_, entries[i]->first, style_.ensure_ascii);
      text_ += style_.key_separator;
      write(entries[i]->second, level + 1);
    }
    end_items(level);
    text_ += '}';
  }

  void begin_item(size_t index, int level) {
    if (index > 0) text_ += style_.item_separator;
    break_line(level);
  }
  void end_items(int level) { break_line(level); }
  void break_line(int level) {
    if (!style_.indent) return;
    budget_.make(1 + level * static_cast<int64_t>(style_.indent->size()));
    text_ += '\n';
    for (int i = 0; i < level; ++i) text_ += *style_.indent;
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string text_;
};

}  // namespace

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) return value.text();
  if (value.is_undefined()) return "";
  return to_repr(value, budget);
}

std::string to_repr(const Value& value, Budget& budget) {
  budget.work(kNodeWork);
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.is_true() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.whole());
  if (value.is_float()) return float_text(value.number());
  if (value.is_text()) {
    budget.make(static_cast<int64_t>(value.text().size()));
    return quoted_text(value.text());
  }
  std::string text;
  if (value.is_list()) {
    const List& list = value.list();
    for (const Value& element : list.values) text += (text.empty() ? "" : ", ") + to_repr(element, budget);
    if (list.is_tuple && list.values.size() == 1) text += ',';
    text = list.is_tuple ? "(" + text + ")" : "[" + text + "]";
  } else if (value.is_dict()) {
    for (const auto& [key, element] : value.dict().entries()) {
      text += (text.empty() ? "" : ", ") + quoted_text(key) + ": " + to_repr(element, budget);
    }
    text = "{" + text + "}";
  } else {
    throw Failure(value.kind() + " has no text");
  }
  budget.make(static_cast<int64_t>(text.size()));
  return text;
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace meshtrain::jinja
