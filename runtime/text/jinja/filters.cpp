#include "runtime/text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/jinja/texts.h"
#include "runtime/text/jinja/value_tests.h"

namespace meshtrain::jinja {
namespace {

using Filter = Value (*)(const Value& value, const Arguments& arguments, Budget& budget);

bool flag(const Arguments& arguments, size_t index, std::string_view name, bool absent) {
  const Value* const found = arguments.find(index, name);
  return found == nullptr ? absent : found->is_true();
}

/// Returns the text of any value, charged.
std::string shown_text(const Value& value, Budget& budget) {
  std::string text = to_text(value, budget);
  budget.make(static_cast<int64_t>(text.size()));
  return text;
}

/// Returns a value to sort by: texts without their case unless `case_sensitive`.
Value sort_key(const Value& value, bool case_sensitive, Budget& budget) {
  return case_sensitive || !value.is_text() ? value : make_text(lower(value.text()), budget);
}

void sort_values(std::vector<Value>& values, const std::function<Value(const Value&)>& key, bool reverse,
                 Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : values) keyed.emplace_back(key(value), std::move(value));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first, budget) < 0 : compare(a.first, b.first, budget) < 0;
  });
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::move(keyed[i].second);
}

/// Returns a function of the key that an attribute=... argument names, or of the value itself.
std::function<Value(const Value&)> key_function(const Value* attribute, bool case_sensitive, Budget& budget) {
  const Value path = attribute == nullptr ? Value(None{}) : *attribute;
  return [path, case_sensitive, &budget](const Value& value) {
    return sort_key(path.is_none() ? value : get_path(value, path, budget), case_sensitive, budget);
  };
}

Value trim(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(1, {"chars"});
  const Value* const set = arguments.find(0, "chars");
  const std::string text = shown_text(value, budget);
  const std::string* const characters = set == nullptr || set->is_none() ? nullptr : &set->text();
  budget.work(static_cast<int64_t>(text.size() * (characters == nullptr ? 1 : characters->size() + 1)));
  return make_text(std::string(strip(text, characters)), budget);
}

Value tojson(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = flag(arguments, 0, "ensure_ascii", false);
  style.sort_keys = flag(arguments, 3, "sort_keys", false);
  const Value *const indent = arguments.find(1, "indent"), *const separators = arguments.find(2, "separators");
  if (indent != nullptr && !indent->is_none()) {
    style.item_separator = ",";
    if (!indent->is_text() && indent->whole() > 1000) throw Failure("the indent is too wide");
    style.indent = indent->is_text() ? indent->text()
                                     : std::string(static_cast<size_t>(std::max(indent->whole(), int64_t{0})), ' ');
  }
  if (separators != nullptr && !separators->is_none()) {
    const auto& pair = separators->list().values;
    if (pair.size() != 2) throw Failure("separators must be two strings");
    style.item_separator = pair[0].text(), style.key_separator = pair[1].text();
  }
  return make_text(to_json(value, style, budget), budget);
}

Value length(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(0);
  if (value.is_undefined()) return int64_t{0};
  if (value.is_list()) return static_cast<int64_t>(value.list().values.size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  if (!value.is_text()) throw Failure(value.kind() + " has no length");
  budget.work(static_cast<int64_t>(value.text().size()));
  return static_cast<int64_t>(length_of(value.text()));
}

Value join(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(2, {"d", "attribute"});
  const Value *const separator = arguments.find(0, "d"), *const attribute = arguments.find(1, "attribute");
  const std::string between = separator == nullptr ? "" : to_text(*separator, budget);
  std::string text;
  bool first = true;
  for (const Value& element : elements(value, budget)) {
    const bool is_itself = attribute == nullptr || attribute->is_none();
    const std::string part = to_text(is_itself ? element : get_path(element, *attribute, budget), budget);
    budget.make(static_cast<int64_t>(between.size() + part.size()));
    if (!std::exchange(first, false)) text += between;
    text += part;
  }
  return make_text(std::move(text), budget);
}

Value default_value(const Value& value, const Arguments& arguments, Budget&) {
  arguments.check(2, {"default_value", "boolean"});
  const bool is_given = !value.is_undefined() && (value.is_true() || !flag(arguments, 1, "boolean", false));
  if (is_given) return value;
  const Value* const other = arguments.find(0, "default_value");
  return other != nullptr ? *other : Value::text("");
}

Value replace_text(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(3, {"old", "new", "count"});
  const std::string text = shown_text(value, budget);
  const Value* const count = arguments.find(2, "count");
  const std::string &old = arguments.needed(0, "old").text(), &by = arguments.needed(1, "new").text();
  const int64_t most = count == nullptr || count->is_none() ? -1 : count->whole();
  budget.work(static_cast<int64_t>(text.size()));
  budget.make(replaced_size(text, old, by, most));
  return make_text(replace(text, old, by, most), budget);
}

Value map_values(const Value& value, const Arguments& arguments, Budget& budget) {
  std::vector<Value> mapped;
  if (!value.is_true()) return make_list({}, budget);  // none too has no elements here
  const Value* const attribute = arguments.positional.empty() ? arguments.find(0, "attribute") : nullptr;
  if (attribute != nullptr) {
    const Value* const absent = arguments.find(1, "default");
    for (const Value& element : elements(value, budget)) {
      Value found = get_path(element, *attribute, budget);
      mapped.push_back(found.is_undefined() && absent != nullptr ? *absent : std::move(found));
    }
  } else {
    Arguments rest = arguments;
    const std::string name = arguments.needed(0, "filter").text();
    rest.positional.erase(rest.positional.begin());
    for (const Value& element : elements(value, budget)) mapped.push_back(apply_filter(name, element, rest, budget));
  }
  return make_list(std::move(mapped), budget);
}

/// Returns the elements, or those of which an attribute, is accepted by a test, or with `accepted` false the others.
Value selected(const Value& value, const Arguments& arguments, Budget& budget, bool by_attribute, bool accepted) {
  Arguments rest = arguments;
  const auto take = [&]() -> std::optional<Value> {
    if (rest.positional.empty()) return std::nullopt;
    Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  const std::optional<Value> attribute = by_attribute ? take() : std::nullopt, test = take();
  if (by_attribute && !attribute) throw Failure("the name of an attribute is missing");
  std::vector<Value> kept;
  if (!value.is_true()) return make_list({}, budget);  // none too has no elements here
  for (const Value& element : elements(value, budget)) {
    const Value tested = attribute ? get_path(element, *attribute, budget) : element;
    if ((test ? apply_test(test->text(), tested, rest, budget) : tested.is_true()) == accepted) kept.push_back(element);
  }
  return make_list(std::move(kept), budget);
}

Value first_or_last(const Value& value, const Arguments& arguments, Budget& budget, bool last) {
  arguments.check(0);
  const std::vector<Value> all = elements(value, budget);
  if (all.empty()) return undefined("an empty list has no elements");
  return last ? all.back() : all.front();
}

Value dictsort(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(3, {"case_sensitive", "by", "reverse"});
  const Value* const by = arguments.find(1, "by");
  const int64_t index = by != nullptr && by->text() == "value" ? 1 : 0;
  std::vector<Value> pairs = call_method(Value(value.dict_ptr()), "items", {}, budget).list().values;
  const bool case_sensitive = flag(arguments, 0, "case_sensitive", false);
  sort_values(
      pairs,
      [&](const Value& pair) {
        return sort_key(pair.list().values[static_cast<size_t>(index)], case_sensitive, budget);
      },
      flag(arguments, 2, "reverse", false), budget);
  return make_list(std::move(pairs), budget);
}

Value sort(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(3, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> values = elements(value, budget);
  sort_values(values, key_function(arguments.find(2, "attribute"), flag(arguments, 1, "case_sensitive", false), budget),
              flag(arguments, 0, "reverse", false), budget);
  return make_list(std::move(values), budget);
}

Value unique(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(2, {"case_sensitive", "attribute"});
  const auto key = key_function(arguments.find(1, "attribute"), flag(arguments, 0, "case_sensitive", false), budget);
  std::vector<Value> kept, keys;
  for (const Value& element : elements(value, budget)) {
    const Value own = key(element);
    if (std::ranges::any_of(keys, [&](const Value& other) { return equal(own, other, budget); })) continue;
    keys.push_back(own);
    kept.push_back(element);
  }
  return make_list(std::move(kept), budget);
}

Value reversed(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(0);
  std::vector<Value> values = elements(value, budget);
  std::ranges::reverse(values);
  if (!value.is_text()) return make_list(std::move(values), budget);
  std::string text;
  for (const Value& character : values) text += character.text();
  return make_text(std::move(text), budget);
}

/// Returns the number that Python reads from a text, if any. Throws Failure for spellings that are not supported here.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  if (std::ranges::any_of(text, [](char c) { return c == '_' || c < 0; })) {
    throw Failure("a number must have ASCII digits and no underscores");
  }
  text = strip(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  Number number = 0;
  const auto found = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole_text = found.ec == std::errc() && found.ptr == text.data() + text.size();
  return is_whole_text ? std::optional(number) : std::nullopt;
}

Value to_int(const Value& value, const Arguments& arguments, Budget&) {
  arguments.check(1, {"default"});
  const Value* const absent = arguments.find(0, "default");
  const Value other = absent == nullptr ? Value(int64_t{0}) : *absent;
  if (value.is_whole()) return value.whole();
  if (!value.is_float() && !value.is_text()) return other;
  if (value.is_text()) {
    if (const auto whole = number_in<int64_t>(value.text())) return *whole;
  }
  const std::optional<double> number = value.is_text() ? number_in<double>(value.text()) : value.number();
  if (!number || !std::isfinite(*number)) return other;
  if (std::fabs(*number) >= 9.2e18) throw Failure("a whole number has more than 64 bits");
  return static_cast<int64_t>(*number);
}

Value to_float(const Value& value, const Arguments& arguments, Budget&) {
  arguments.check(1, {"default"});
  const Value* const absent = arguments.find(0, "default");
  if (value.is_number()) return value.number();
  const Value other = absent == nullptr ? Value(0.0) : *absent;
  const std::optional<double> number = value.is_text() ? number_in<double>(value.text()) : std::nullopt;
  return number ? Value(*number) : other;
}

Value absolute(const Value& value, const Arguments& arguments, Budget&) {
  arguments.check(0);
  if (value.is_float()) return std::fabs(value.number());
  if (value.whole() == std::numeric_limits<int64_t>::min()) throw Failure("the number has more than 64 bits");
  return std::abs(value.whole());
}

Value indent(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(3, {"width", "first", "blank"});
  const Value* const width = arguments.find(0, "width");
  if (width != nullptr && !width->is_text() && (width->whole() < 0 || width->whole() > 1000)) {
    throw Failure("the width must be from 0 to 1000");
  }
  const std::string margin = width == nullptr   ? "    "
                             : width->is_text() ? width->text()
                                                : std::string(static_cast<size_t>(width->whole()), ' ');
  const bool blank = flag(arguments, 2, "blank", false);
  const std::string text = shown_text(value, budget) + "\n";
  std::string result = flag(arguments, 1, "first", false) ? margin : "";
  bool first = true;
  for (const std::string_view line : split_lines(text)) {
    budget.make(static_cast<int64_t>(margin.size() + line.size() + 1));
    if (!first) result += '\n';
    if (!first && (blank || !line.empty())) result += margin;
    first = false;
    result += line;
  }
  return make_text(std::move(result), budget);
}

Value escaped(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(0);
  std::string result;
  for (const char c : shown_text(value, budget)) {
    const char* const replaced = c == '&'    ? "&amp;"
                                 : c == '<'  ? "&lt;"
                                 : c == '>'  ? "&gt;"
                                 : c == '\'' ? "&#39;"
                                 : c == '"'  ? "&#34;"
                                             : nullptr;
    replaced != nullptr ? result += replaced : result += c;
  }
  return make_text(std::move(result), budget);
}

Value items(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(0);
  if (value.is_undefined()) return make_list({}, budget);
  if (!value.is_dict()) throw Failure(value.kind() + " has no items");
  return call_method(value, "items", {}, budget);
}

template <std::string (*Change)(std::string_view)>
Value with_case(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(0);
  return make_text(Change(shown_text(value, budget)), budget);
}

/// Returns the text with a capital at the beginning of each word. Words begin as in Jinja, unlike str.title(): after
/// spaces, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string changed = lower(text);
  title(text);  // refuses letters whose case is not known here
  bool begins = true;
  for (char& c : changed) {
    if (begins && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    begins = std::string_view(" \t\n\v\f\r-([{<").find(c) != std::string_view::npos;
  }
  return changed;
}

const std::map<std::string, Filter>& filters() {
  using V = const Value&;
  using A = const Arguments&;
  using B = Budget&;
  static const std::map<std::string, Filter> all = {
      {"trim", trim},
      {"tojson", tojson},
      {"length", length},
      {"count", length},
      {"join", join},
      {"default", default_value},
      {"d", default_value},
      {"upper", with_case<upper>},
      {"lower", with_case<lower>},
      {"capitalize", with_case<capitalize>},
      {"title", with_case<title_words>},
      {"replace", replace_text},
      {"map", map_values},
      {"select", [](V v, A a, B b) { return selected(v, a, b, false, true); }},
      {"reject", [](V v, A a, B b) { return selected(v, a, b, false, false); }},
      {"selectattr", [](V v, A a, B b) { return selected(v, a, b, true, true); }},
      {"rejectattr", [](V v, A a, B b) { return selected(v, a, b, true, false); }},
      {"list", [](V v, A a, B b) { return a.check(0), make_list(elements(v, b), b); }},
      {"first", [](V v, A a, B b) { return first_or_last(v, a, b, false); }},
      {"last", [](V v, A a, B b) { return first_or_last(v, a, b, true); }},
      {"items", items},
      {"dictsort", dictsort},
      {"sort", sort},
      {"unique", unique},
      {"reverse", reversed},
      {"string", [](V v, A a, B b) { return a.check(0), make_text(to_text(v, b), b); }},
      {"safe", [](V v, A a, B b) { return a.check(0), make_text(to_text(v, b), b); }},
      {"escape", escaped},
      {"e", escaped},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"indent", indent},
  };
  return all;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
  const auto found = filters().find(name);
  if (found == filters().end()) throw Failure("there is no filter \"" + name + "\"");
  budget.work(kNodeWork);
  if (name == "dictsort" && !value.is_dict()) throw Failure(value.kind() + " has no items");
  return found->second(value, arguments, budget);
}

}  // namespace meshtrain::jinja
