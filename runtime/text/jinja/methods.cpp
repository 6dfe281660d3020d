#include "runtime/text/jinja/methods.h"

#include <algorithm>
#include <map>

#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

using Method = Value (*)(const Value& self, const Arguments& arguments, Budget& budget);

/// Returns a text argument, null when it is left out or none.
const std::string* text_or_null(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* const found = arguments.find(index, name);
  return found == nullptr || found->is_none() ? nullptr : &found->text();
}

int64_t whole_or(const Arguments& arguments, size_t index, std::string_view name, int64_t absent) {
  const Value* const found = arguments.find(index, name);
  return found == nullptr ? absent : found->whole();
}

Value list_of(const std::vector<std::string_view>& parts, Budget& budget) {
  std::vector<Value> values;
  for (const std::string_view part : parts) values.push_back(make_text(std::string(part), budget));
  return make_list(std::move(values), budget);
}

Value stripped(const Value& self, const Arguments& arguments, Budget& budget,
               std::string_view (*how)(std::string_view, const std::string*)) {
  arguments.check(1);
  return make_text(std::string(how(self.text(), text_or_null(arguments, 0, ""))), budget);
}

Value split_by(const Value& self, const Arguments& arguments, Budget& budget,
               std::vector<std::string_view> (*how)(std::string_view, const std::string*, int64_t)) {
  arguments.check(2, {"sep", "maxsplit"});
  return list_of(how(self.text(), text_or_null(arguments, 0, "sep"), whole_or(arguments, 1, "maxsplit", -1)), budget);
}

/// Returns whether `test` accepts the text, or one of a tuple of texts.
template <class Test>
Value any_of(const Arguments& arguments, const Test& test) {
  arguments.check(1);
  const Value& wanted = arguments.needed(0, "prefix");
  if (!wanted.is_list() || !wanted.list().is_tuple) return bool(test(wanted.text()));
  return std::ranges::any_of(wanted.list().values, [&](const Value& value) { return test(value.text()); });
}

const std::map<std::string, Method>& text_methods() {
  using V = const Value&;
  using A = const Arguments&;
  using B = Budget&;
  static const std::map<std::string, Method> methods = {
      {"strip", [](V self, A a, B b) { return stripped(self, a, b, strip); }},
      {"lstrip", [](V self, A a, B b) { return stripped(self, a, b, strip_left); }},
      {"rstrip", [](V self, A a, B b) { return stripped(self, a, b, strip_right); }},
      {"split", [](V self, A a, B b) { return split_by(self, a, b, split); }},
      {"rsplit", [](V self, A a, B b) { return split_by(self, a, b, split_from_right); }},
      {"startswith",
       [](V self, A a, B) { return any_of(a, [&](const std::string& x) { return self.text().starts_with(x); }); }},
      {"endswith",
       [](V self, A a, B) { return any_of(a, [&](const std::string& x) { return self.text().ends_with(x); }); }},
      {"upper", [](V self, A a, B b) { return a.check(0), make_text(upper(self.text()), b); }},
      {"lower", [](V self, A a, B b) { return a.check(0), make_text(lower(self.text()), b); }},
      {"title", [](V self, A a, B b) { return a.check(0), make_text(title(self.text()), b); }},
      {"capitalize", [](V self, A a, B b) { return a.check(0), make_text(capitalize(self.text()), b); }},
      {"replace",
       [](V self, A a, B b) {
         a.check(3, {"count"});
         const std::string &old = a.needed(0, "old").text(), &by = a.needed(1, "new").text();
         const int64_t most = whole_or(a, 2, "count", -1);
         b.make(replaced_size(self.text(), old, by, most));
         return make_text(replace(self.text(), old, by, most), b);
       }},
  };
  return methods;
}

Value pair_of(const std::pair<std::string, Value>& entry, Budget& budget) {
  return make_list({make_text(entry.first, budget), entry.second}, budget, /*is_tuple=*/true);
}

const std::map<std::string, Method>& dict_methods() {
  static const std::map<std::string, Method> methods = {
      {"get",
       [](const Value& self, const Arguments& a, Budget&) -> Value {
         a.check(2);
         const Value &key = a.needed(0, "key"), *absent = a.find(1, "default");
         const Value* const found = key.is_text() ? self.dict().find(key.text()) : nullptr;
         return found != nullptr ? *found : absent != nullptr ? *absent : Value(None{});
       }},
      {"keys",
       [](const Value& self, const Arguments& a, Budget& b) { return a.check(0), make_list(elements(self, b), b); }},
      {"values",
       [](const Value& self, const Arguments& a, Budget& b) {
         a.check(0);
         std::vector<Value> values;
         for (const auto& [key, value] : self.dict().entries()) values.push_back(value);
         return make_list(std::move(values), b);
       }},
      {"items",
       [](const Value& self, const Arguments& a, Budget& b) {
         a.check(0);
         std::vector<Value> pairs;
         for (const auto& entry : self.dict().entries()) pairs.push_back(pair_of(entry, b));
         return make_list(std::move(pairs), b);
       }},
  };
  return methods;
}

const std::map<std::string, Method>* methods_of(const Value& value) {
  if (value.is_text()) return &text_methods();
  return value.is_dict() ? &dict_methods() : nullptr;
}

/// Returns true for methods of lists and dictionaries that change them.
bool changes(const Value& value, const std::string& name) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (value.is_dict()) return is_one_of({"clear", "pop", "popitem", "setdefault", "update"});
  return value.is_list() && !value.list().is_tuple &&
         is_one_of({"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
}

}  // namespace

bool has_method(const Value& value, const std::string& name) {
  const auto* const methods = methods_of(value);
  return changes(value, name) || (methods != nullptr && methods->contains(name));
}

Value call_method(const Value& value, const std::string& name, const Arguments& arguments, Budget& budget) {
  if (changes(value, name)) throw Failure(name + "() changes " + value.kind() + ", which a template may not do");
  const auto* const methods = methods_of(value);
  if (value.is_text()) {
    const bool linear =
        name[0] != 'r' && name.find("strip") == std::string::npos;  // others look at each argument's byte
    const Value* const first = arguments.find(0, "");
    const size_t factor = linear || first == nullptr || !first->is_text() ? 1 : first->text().size() + 1;
    budget.work(static_cast<int64_t>((value.text().size() + 1) * factor));
  }
  return methods->at(name)(value, arguments, budget);
}

}  // namespace meshtrain::jinja
