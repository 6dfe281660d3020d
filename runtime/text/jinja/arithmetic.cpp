#include "runtime/text/jinja/arithmetic.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/printing.h"

namespace meshtrain::jinja {
namespace {

Value checked(bool overflows, int64_t number) {
  if (overflows) throw Failure("a whole number has more than 64 bits");
  return number;
}

Value whole_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  int64_t power = 1;
  bool overflows = false;
  for (; exponent > 0 && !overflows; exponent >>= 1) {
    if ((exponent & 1) != 0) overflows = __builtin_mul_overflow(power, base, &power);
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) overflows = true;
  }
  return checked(overflows, power);
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
  if (sign == "**") return whole_power(a, b);
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
  if (sign == "**") return std::pow(a, b);
  if (b == 0) throw Failure("a division by zero");
  if (sign == "/") return a / b;
  const double rest = std::fmod(a, b), modulo = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  return sign == "%" ? modulo : std::floor(a / b);
}

/// Returns `format` % `values`, of which %s, %r, %d, %i, %f, %.Nf and %% are known.
Value formatted_text(const std::string& format, const Value& values, Budget& budget) {
  const bool is_tuple = values.is_list() && values.list().is_tuple;
  const std::vector<Value> all = is_tuple ? values.list().values : std::vector<Value>{values};
  std::string result;
  size_t next = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      result += format[at];
      continue;
    }
    size_t precision = 6;
    if (++at < format.size() && format[at] == '.') {
      const size_t digits = format.find_first_not_of("0123456789", at + 1);
      if (digits == std::string::npos || digits == at + 1 || digits > at + 3)
        throw Failure("a % of a format is not known");
      precision = static_cast<size_t>(std::stoi(format.substr(at + 1, digits - at - 1)));
      at = digits;
    }
    const char kind = at < format.size() ? format[at] : '\0';
    if (kind == '%') {
      result += '%';
      continue;
    }
    if (next >= all.size()) throw Failure("a format has more fields than values");
    const Value& value = all[next++];
    std::string shown;
    if (kind == 's') {
      shown = to_text(value, budget);
    } else if (kind == 'r') {
      shown = to_repr(value, budget);
    } else if (kind == 'd' || kind == 'i') {
      if (value.is_float() && !(std::fabs(value.number()) < 9.2e18)) throw Failure("the number has more than 64 bits");
      shown = std::to_string(value.is_float() ? static_cast<int64_t>(value.number()) : value.whole());
    } else if (kind == 'f') {
      std::string buffer(512, '\0');
      const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value.number(),
                                     std::chars_format::fixed, static_cast<int>(precision));
      shown = buffer.substr(0, static_cast<size_t>(end.ptr - buffer.data()));
    } else {
      throw Failure("a % of a format is not known: %s, %r, %d, %i and %f are");
    }
    budget.make(static_cast<int64_t>(shown.size()));
    result += shown;
  }
  if (next < all.size() && is_tuple) throw Failure("a format has fewer fields than values");
  return make_text(std::move(result), budget);
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
  if (sign == "%" && left.is_text()) return formatted_text(left.text(), right, budget);
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
