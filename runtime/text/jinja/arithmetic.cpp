#include "runtime/text/jinja/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/text/jinja/failure.h"

namespace meshtrain::jinja {
namespace {

Value checked(bool overflows, int64_t number) {
  if (overflows) throw Failure("a whole number has more than 64 bits");
  return number;
}

Value whole_arithmetic(const std::string& sign, int64_t a, int64_t b) {
  int64_t result = 0;
  if (sign == "+") {
    const bool overflows = __builtin_add_overflow(a, b, &result);
    return checked(overflows, result);
  }
  if (sign == "-") {
    const bool overflows = __builtin_sub_overflow(a, b, &result);
    return checked(overflows, result);
  }
  if (sign == "*") {
    const bool overflows = __builtin_mul_overflow(a, b, &result);
    return checked(overflows, result);
  }
  if (b == 0) throw Failure("a division by zero");
  if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (sign == "%") return remainder(a, b);
  if (b == -1)
    return checked(a == std::numeric_limits<int64_t>::min(), a == std::numeric_limits<int64_t>::min() ? 0 : -a);
  return (a - remainder(a, b)) / b;
}

Value float_arithmetic(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (b == 0) throw Failure("a division by zero");
  if (sign == "/") return a / b;
  const double rest = std::fmod(a, b), modulo = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  return sign == "%" ? modulo : std::floor(a / b);
}

Value repeated(const Value& value, int64_t times, Budget& budget) {
  times = std::max(times, int64_t{0});
  const bool is_text = value.is_text();
  const auto size = is_text ? static_cast<int64_t>(value.text().size())
                            : kElementBytes * static_cast<int64_t>(value.list().values.size());
  int64_t bytes = 0;
  if (__builtin_mul_overflow(size, times, &bytes)) bytes = std::numeric_limits<int64_t>::max();
  budget.make(bytes);
  if (size == 0) return value;
  std::string text;
  std::vector<Value> values;
  for (int64_t i = 0; i < times; ++i) {
    if (is_text) {
      text += value.text();
    } else {
      values.insert(values.end(), value.list().values.begin(), value.list().values.end());
    }
  }
  return is_text ? Value::text(std::move(text)) : make_list(std::move(values), budget, value.list().is_tuple);
}

}  // namespace

int64_t remainder(int64_t a, int64_t b) {
  if (b == 0) throw Failure("a division by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value arithmetic(const std::string& sign, const Value& left, const Value& right, Budget& budget) {
  for (const Value* operand : {&left, &right}) {
    if (operand->is_undefined()) throw Failure(*operand->undefined().hint);
  }
  if (left.is_whole() && right.is_whole()) return whole_arithmetic(sign, left.whole(), right.whole());
  if (left.is_number() && right.is_number()) return float_arithmetic(sign, left.number(), right.number());
  if (sign == "+" && left.is_text() && right.is_text()) {
    budget.make(static_cast<int64_t>(left.text().size() + right.text().size()));
    return Value::text(left.text() + right.text());
  }
  if (sign == "+" && left.is_list() && right.is_list() && left.list().is_tuple == right.list().is_tuple) {
    std::vector<Value> values = left.list().values;
    values.insert(values.end(), right.list().values.begin(), right.list().values.end());
    return make_list(std::move(values), budget, left.list().is_tuple);
  }
  if (sign == "*") {
    if ((left.is_text() || left.is_list()) && right.is_whole()) return repeated(left, right.whole(), budget);
    if ((right.is_text() || right.is_list()) && left.is_whole()) return repeated(right, left.whole(), budget);
  }
  throw Failure(left.kind() + " " + sign + " " + right.kind() + " has no meaning");
}

}  // namespace meshtrain::jinja
