#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/text/jinja/budget.h"

namespace meshtrain::jinja {

class Value;

/// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// Returns the argument at `index`, or the one called `name`; null when neither is given.
  const Value* find(size_t index, std::string_view name) const;
  /// Returns it. Throws Failure when it is not given.
  const Value& needed(size_t index, std::string_view name) const;
  /// Throws Failure when there are more than `most` positional arguments, or a named one that is not in `names`.
  void check(size_t most, std::initializer_list<std::string_view> names = {}) const;
};

/// A value with attributes, or that can be called: a macro, a loop, a namespace, a method of a text.
class Object {
 public:
  virtual ~Object() = default;
  /// Returns what it is, for messages.
  virtual const char* type() const = 0;
  virtual std::optional<Value> attribute(const std::string& name) const;
  virtual bool is_callable() const { return false; }
  virtual Value call(const Arguments& arguments);
};

struct List;
class Dict;
using Text = std::shared_ptr<const std::string>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

/// The absence of a value. `hint`: how it was looked for, for messages.
struct Undefined {
  Text hint;
};
struct None {};

/// A value of a template, with the meaning that it has in Python. Immutable and cheap to copy: texts, lists and
/// dictionaries are shared.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}  // NOLINT: values are what expressions have
  template <std::same_as<bool> Flag>
  Value(Flag flag) : data_(flag) {}                            // NOLINT: and no pointer becomes a flag
  Value(int64_t number) : data_(number) {}                     // NOLINT
  Value(double number) : data_(number) {}                      // NOLINT
  Value(Text text) : data_(std::move(text)) {}                 // NOLINT
  Value(ListPtr list) : data_(std::move(list)) {}              // NOLINT
  Value(DictPtr dict) : data_(std::move(dict)) {}              // NOLINT
  Value(ObjectPtr object) : data_(std::move(object)) {}        // NOLINT
  Value(Undefined undefined) : data_(std::move(undefined)) {}  // NOLINT
  static Value text(std::string text) { return Value(std::make_shared<const std::string>(std::move(text))); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_text() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_object() const { return std::holds_alternative<ObjectPtr>(data_); }
  /// Return true for what counts as a number in Python: flags too.
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_whole() const { return is_bool() || is_int(); }

  const Undefined& undefined() const { return std::get<Undefined>(data_); }
  /// Return the value. Throw Failure, naming what it is instead, for one of another type.
  const std::string& text() const;
  const List& list() const;
  const Dict& dict() const;
  const ListPtr& list_ptr() const { return std::get<ListPtr>(data_); }
  const DictPtr& dict_ptr() const { return std::get<DictPtr>(data_); }
  const ObjectPtr& object() const { return std::get<ObjectPtr>(data_); }
  int64_t whole() const;  ///< an int, or a flag as 0 or 1
  double number() const;  ///< any number

  /// Returns Python's bool(value).
  bool is_true() const;
  /// Returns what it is, for messages: "a text", "a list".
  std::string kind() const;
  /// Returns the depth of the lists and dictionaries inside each other: 0 for other values.
  int depth() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr, ObjectPtr> data_;
};

/// A list or a tuple.
struct List {
  std::vector<Value> values;
  bool is_tuple = false;
  int depth = 1;
};

/// A dictionary of texts, in the order in which keys were added.
class Dict {
 public:
  const Value* find(const std::string& key) const;
  /// Adds a key, or replaces the value of one.
  void set(const std::string& key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;  // filled once there are many
  int depth_ = 1;
};

constexpr int kDeepestValue = 300;

/// Makes a list. Throws Failure when lists are nested more than kDeepestValue deep.
Value make_list(std::vector<Value> values, Budget& budget, bool is_tuple = false);
Value make_dict(Dict dict);
Value make_text(std::string text, Budget& budget);
Value undefined(std::string hint);

/// Returns the value of JSON, with keys in their order. Throws Failure for a whole number beyond 64 bits.
Value from_json(const nlohmann::ordered_json& json);

/// Returns Python's a == b.
bool equal(const Value& a, const Value& b, Budget& budget);
/// Returns -1, 0 or 1 for two numbers, texts or lists. Throws Failure for others, as Python refuses to order them.
int compare(const Value& a, const Value& b, Budget& budget);
/// Returns Python's `item in container`.
bool contains(const Value& container, const Value& item, Budget& budget);

/// Returns the elements that a loop over `value` has: of a list, the keys of a dictionary, the characters of a text;
/// none for an undefined one. Throws Failure for others.
std::vector<Value> elements(const Value& value, Budget& budget);

}  // namespace meshtrain::jinja
