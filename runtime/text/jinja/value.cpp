#include "runtime/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mesh/base/size_text.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

constexpr size_t kFewKeys = 16;  // are searched one by one

[[noreturn]] void refuse_kind(const Value& value, const char* needed) {
  if (value.is_undefined()) throw Failure(*value.undefined().hint);
  throw Failure("this is " + value.kind() + ", but " + needed + " is needed");
}

int checked_depth(int depth) {
  if (depth > kDeepestValue) {
    throw Failure("lists are nested more than " + std::to_string(kDeepestValue) + " levels deep");
  }
  return depth;
}

}  // namespace

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Value& Arguments::needed(size_t index, std::string_view name) const {
  const Value* const found = find(index, name);
  if (found == nullptr) throw Failure("the argument " + std::string(name) + " is missing");
  return *found;
}

void Arguments::check(size_t most, std::initializer_list<std::string_view> names) const {
  if (positional.size() > most) {
    throw Failure(counted(positional.size(), "argument is", "arguments are") + " given, but at most " +
                  std::to_string(most) + " accepted");
  }
  for (const auto& [key, value] : named) {
    if (std::find(names.begin(), names.end(), key) == names.end()) throw Failure("there is no argument " + key);
  }
}

std::optional<Value> Object::attribute(const std::string&) const {
  return std::nullopt;
}

Value Object::call(const Arguments&) {
  throw Failure(std::string(type()) + " cannot be called");
}

const std::string& Value::text() const {
  if (!is_text()) refuse_kind(*this, "a text");
  return *std::get<Text>(data_);
}

const List& Value::list() const {
  if (!is_list()) refuse_kind(*this, "a list");
  return *std::get<ListPtr>(data_);
}

const Dict& Value::dict() const {
  if (!is_dict()) refuse_kind(*this, "a dictionary");
  return *std::get<DictPtr>(data_);
}

int64_t Value::whole() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  if (!is_int()) refuse_kind(*this, "a whole number");
  return std::get<int64_t>(data_);
}

double Value::number() const {
  if (is_float()) return std::get<double>(data_);
  if (!is_whole()) refuse_kind(*this, "a number");
  return static_cast<double>(whole());
}

bool Value::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (is_whole()) return whole() != 0;
  if (is_float()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().values.empty();
  if (is_dict()) return dict().size() > 0;
  return true;
}

std::string Value::kind() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "a flag";
  if (is_int()) return "a whole number";
  if (is_float()) return "a number";
  if (is_text()) return "a text";
  if (is_list()) return list().is_tuple ? "a tuple" : "a list";
  if (is_dict()) return "a dictionary";
  return object()->type();
}

int Value::depth() const {
  if (is_list()) return list().depth;
  if (is_dict()) return dict().depth();
  return 0;
}

const Value* Dict::find(const std::string& key) const {
  if (entries_.size() > kFewKeys) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries_[found->second].second;
  }
  const auto found = std::ranges::find(entries_, key, &std::pair<std::string, Value>::first);
  return found == entries_.end() ? nullptr : &found->second;
}

void Dict::set(const std::string& key, Value value) {
  depth_ = checked_depth(std::max(depth_, value.depth() + 1));
  if (const Value* const old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() <= kFewKeys) return;
  if (index_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].first, i);
  } else {
    index_.emplace(key, entries_.size() - 1);
  }
}

Value make_list(std::vector<Value> values, Budget& budget, bool is_tuple) {
  budget.make(kElementBytes * static_cast<int64_t>(values.size() + 1));
  int depth = 1;
  for (const Value& value : values) depth = std::max(depth, value.depth() + 1);
  return {std::make_shared<const List>(List{std::move(values), is_tuple, checked_depth(depth)})};
}

Value make_dict(Dict dict) {
  return {std::make_shared<const Dict>(std::move(dict))};
}

Value make_text(std::string text, Budget& budget) {
  budget.make(static_cast<int64_t>(text.size()) + kElementBytes);
  return Value::text(std::move(text));
}

Value undefined(std::string hint) {
  return Undefined{std::make_shared<const std::string>(std::move(hint))};
}

Value from_json(const nlohmann::ordered_json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) {
    if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw Failure("the whole number " + json.dump() + " has more than 64 bits");
    }
    return json.get<int64_t>();
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) {
    const double number = json.get<double>();
    if (std::fabs(number) >= 9.2e18 && number == std::floor(number)) {
      // JSON has one kind of number; a whole one of this size was written without a point as far as anyone can tell.
      throw Failure("the number " + json.dump() + " is too large");
    }
    return number;
  }
  if (json.is_string()) return Value::text(json.get<std::string>());
  if (json.is_array()) {
    List list;
    for (const auto& element : json) {
      list.values.push_back(from_json(element));
      list.depth = checked_depth(std::max(list.depth, list.values.back().depth() + 1));
    }
    return {std::make_shared<const List>(std::move(list))};
  }
  Dict dict;
  for (const auto& [key, value] : json.items()) dict.set(key, from_json(value));
  return make_dict(std::move(dict));
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.work(1);
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  }
  if (a.is_text() && b.is_text()) {
    if (a.text().size() != b.text().size()) return false;
    budget.work(static_cast<int64_t>(a.text().size()));
    return a.text() == b.text();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_list() && b.is_list()) {
    const List &x = a.list(), &y = b.list();
    return x.is_tuple == y.is_tuple && std::equal(x.values.begin(), x.values.end(), y.values.begin(), y.values.end(),
                                                  [&](const Value& p, const Value& q) { return equal(p, q, budget); });
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    return std::ranges::all_of(a.dict().entries(), [&](const auto& entry) {
      const Value* const other = b.dict().find(entry.first);
      return other != nullptr && equal(entry.second, *other, budget);
    });
  }
  return a.is_object() && b.is_object() && a.object() == b.object();
}

int compare(const Value& a, const Value& b, Budget& budget) {
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  budget.work(1);
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? sign(a.whole(), b.whole()) : sign(a.number(), b.number());
  }
  if (a.is_text() && b.is_text()) {  // UTF-8 has the order of code points
    budget.work(static_cast<int64_t>(std::min(a.text().size(), b.text().size())));
    return sign(a.text().compare(b.text()), 0);
  }
  if (a.is_list() && b.is_list()) {
    const auto &x = a.list().values, &y = b.list().values;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
    }
    return sign(x.size(), y.size());
  }
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) throw Failure(*value->undefined().hint);
  }
  throw Failure(a.kind() + " and " + b.kind() + " have no order");
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_text()) {
    budget.work(static_cast<int64_t>(container.text().size()));
    return find_text(container.text(), item.text()) != std::string::npos;
  }
  if (container.is_dict()) return item.is_text() && container.dict().find(item.text()) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is_list()) throw Failure("nothing is in " + container.kind());
  return std::ranges::any_of(container.list().values, [&](const Value& value) { return equal(value, item, budget); });
}

std::vector<Value> elements(const Value& value, Budget& budget) {
  if (value.is_undefined()) return {};
  if (value.is_list()) {
    budget.work(static_cast<int64_t>(value.list().values.size()));
    return value.list().values;
  }
  std::vector<Value> values;
  if (value.is_dict()) {
    for (const auto& [key, unused] : value.dict().entries()) values.push_back(make_text(key, budget));
    return values;
  }
  if (!value.is_text()) throw Failure(value.kind() + " has no elements to go through");
  for (const std::string_view character : characters(value.text())) {
    values.push_back(make_text(std::string(character), budget));
  }
  return values;
}

}  // namespace meshtrain::jinja
