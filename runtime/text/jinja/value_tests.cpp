#include "runtime/text/jinja/value_tests.h"

#include <map>

#include "runtime/text/jinja/arithmetic.h"
#include "runtime/text/jinja/failure.h"

namespace meshtrain::jinja {
namespace {

using Test = bool (*)(const Value& value, const Arguments& arguments, Budget& budget);

template <class Accepts>
bool ordered(const Value& value, const Arguments& arguments, Budget& budget, const Accepts& accepts) {
  arguments.check(1);
  return accepts(compare(value, arguments.needed(0, "other"), budget));
}

bool is_equal(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(1);
  return equal(value, arguments.needed(0, "other"), budget);
}
bool is_unequal(const Value& value, const Arguments& arguments, Budget& budget) {
  return !is_equal(value, arguments, budget);
}
bool is_less(const Value& v, const Arguments& a, Budget& b) {
  return ordered(v, a, b, [](int order) { return order < 0; });
}
bool is_at_most(const Value& v, const Arguments& a, Budget& b) {
  return ordered(v, a, b, [](int order) { return order <= 0; });
}
bool is_greater(const Value& v, const Arguments& a, Budget& b) {
  return ordered(v, a, b, [](int order) { return order > 0; });
}
bool is_at_least(const Value& v, const Arguments& a, Budget& b) {
  return ordered(v, a, b, [](int order) { return order >= 0; });
}

const std::map<std::string, Test>& tests() {
  using V = const Value&;
  using A = const Arguments&;
  using B = Budget&;
  static const std::map<std::string, Test> all = {
      {"defined", [](V v, A, B) { return !v.is_undefined(); }},
      {"undefined", [](V v, A, B) { return v.is_undefined(); }},
      {"none", [](V v, A, B) { return v.is_none(); }},
      {"boolean", [](V v, A, B) { return v.is_bool(); }},
      {"true", [](V v, A, B) { return v.is_bool() && v.is_true(); }},
      {"false", [](V v, A, B) { return v.is_bool() && !v.is_true(); }},
      {"integer", [](V v, A, B) { return v.is_int(); }},
      {"float", [](V v, A, B) { return v.is_float(); }},
      {"number", [](V v, A, B) { return v.is_number(); }},
      {"string", [](V v, A, B) { return v.is_text(); }},
      {"mapping", [](V v, A, B) { return v.is_dict(); }},
      {"sequence", [](V v, A, B) { return v.is_text() || v.is_list() || v.is_dict() || v.is_undefined(); }},
      {"iterable", [](V v, A, B) { return v.is_text() || v.is_list() || v.is_dict() || v.is_undefined(); }},
      {"callable", [](V v, A, B) { return v.is_object() && v.object()->is_callable(); }},
      {"even", [](V v, A, B) { return remainder(v.whole(), 2) == 0; }},
      {"odd", [](V v, A, B) { return remainder(v.whole(), 2) == 1; }},
      {"in", [](V v, A a, B b) { return contains(a.needed(0, "seq"), v, b); }},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"==", is_equal},
      {"ne", is_unequal},
      {"!=", is_unequal},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<", is_less},
      {"le", is_at_most},
      {"<=", is_at_most},
      {"gt", is_greater},
      {"greaterthan", is_greater},
      {">", is_greater},
      {"ge", is_at_least},
      {">=", is_at_least},
  };
  return all;
}

}  // namespace

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw Failure("there is no test \"" + name + "\"");
  budget.work(kNodeWork);
  return found->second(value, arguments, budget);
}

}  // namespace meshtrain::jinja
