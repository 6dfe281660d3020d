#include "runtime/text/jinja/access.h"

#include <algorithm>

#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

void refuse_undefined(const Value& value) {
  if (value.is_undefined()) throw Failure(*value.undefined().hint);
}

/// A method that is not called at once: {% set f = text.strip %}.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string name, Budget& budget)
      : self_(std::move(self)), name_(std::move(name)), budget_(budget) {}
  const char* type() const override { return "a method"; }
  bool is_callable() const override { return true; }
  Value call(const Arguments& arguments) override { return call_method(self_, name_, arguments, budget_); }

 private:
  Value self_;
  std::string name_;
  Budget& budget_;
};

Value bound(const Value& value, const std::string& name, Budget& budget) {
  budget.make(kElementBytes);
  return ObjectPtr(std::make_shared<BoundMethod>(value, name, budget));
}

Value missing(const Value& value, const std::string& name) {
  return undefined(value.kind() + " has no \"" + name + "\"");
}

/// Returns the element at `index`, from the end for a negative one; null when there is none.
template <class Elements>
const auto* element_at(const Elements& elements, int64_t index) {
  const auto size = static_cast<int64_t>(elements.size());
  if (index < 0) index += size;
  return index < 0 || index >= size ? nullptr : &elements[static_cast<size_t>(index)];
}

}  // namespace

Value get_attribute(const Value& value, const std::string& name, Budget& budget) {
  refuse_undefined(value);
  if (has_method(value, name)) return bound(value, name, budget);
  if (value.is_dict()) {
    if (const Value* const found = value.dict().find(name)) return *found;
  }
  if (value.is_object()) {
    if (std::optional<Value> found = value.object()->attribute(name)) return *std::move(found);
  }
  return missing(value, name);
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  refuse_undefined(value);
  refuse_undefined(key);
  if (value.is_dict() && key.is_text()) {
    if (const Value* const found = value.dict().find(key.text())) return *found;
  }
  if (value.is_list() && key.is_whole()) {
    const Value* const found = element_at(value.list().values, key.whole());
    return found != nullptr ? *found : undefined(value.kind() + " has no element " + std::to_string(key.whole()));
  }
  if (value.is_text() && key.is_whole()) {
    budget.work(static_cast<int64_t>(value.text().size()));
    const auto all = characters(value.text());
    const std::string_view* const found = element_at(all, key.whole());
    return found != nullptr ? make_text(std::string(*found), budget)
                            : undefined("a text has no character " + std::to_string(key.whole()));
  }
  if (key.is_text()) {
    if (has_method(value, key.text())) return bound(value, key.text(), budget);
    if (value.is_object()) {
      if (std::optional<Value> found = value.object()->attribute(key.text())) return *std::move(found);
    }
    return missing(value, key.text());
  }
  return undefined(value.kind() + " has no such element");
}

Value get_path(const Value& value, const Value& path, Budget& budget) {
  if (!path.is_text()) return get_item(value, path, budget);
  const std::string point = ".";
  Value found = value;
  for (const std::string_view step : split(path.text(), &point, -1)) {
    const bool is_index = !step.empty() && step.size() < 10 && step.find_first_not_of("0123456789") == step.npos;
    const std::string name(step);
    found = get_item(found, is_index ? Value(int64_t{std::stoi(name)}) : Value::text(name), budget);
  }
  return found;
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step_value, Budget& budget) {
  refuse_undefined(value);
  const auto given = [](const Value& bound) { return !bound.is_undefined() && !bound.is_none(); };
  const int64_t step = given(step_value) ? step_value.whole() : 1;
  if (step == 0) throw Failure("the step of a slice is 0");
  if (!value.is_list() && !value.is_text()) return undefined(value.kind() + " cannot be sliced");
  std::vector<std::string_view> letters;
  if (value.is_text()) {
    budget.work(static_cast<int64_t>(value.text().size()));
    letters = characters(value.text());
  }
  const auto size = static_cast<int64_t>(value.is_text() ? letters.size() : value.list().values.size());
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto bounded = [&](const Value& bound, int64_t absent) {
    if (!given(bound)) return absent;
    const int64_t index = bound.whole();
    return std::clamp(index < 0 ? std::max(index, -size - 1) + size : index, lowest, highest);
  };
  const int64_t first = bounded(begin, step > 0 ? lowest : highest), last = bounded(end, step > 0 ? highest : lowest);
  std::string text;
  std::vector<Value> values;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    if (value.is_text()) {
      text += letters[static_cast<size_t>(i)];
    } else {
      values.push_back(value.list().values[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return value.is_text() ? make_text(std::move(text), budget)
                         : make_list(std::move(values), budget, value.list().is_tuple);
}

}  // namespace meshtrain::jinja
