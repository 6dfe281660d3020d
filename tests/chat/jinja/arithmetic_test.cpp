#include "runtime/text/jinja/arithmetic.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/printing.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using jinja::Failure;
using jinja::Value;

class JinjaArithmetic : public ::testing::Test {
 protected:
  /// Returns the value of `left sign right` as Python prints it.
  std::string result(const Value& left, const std::string& sign, const Value& right) {
    return to_repr(jinja::arithmetic(sign, left, right, budget_), budget_);
  }
  std::string arithmetic_failure(const Value& left, const std::string& sign, const Value& right) {
    return message<Failure>([&] { result(left, sign, right); });
  }
  static Value number(int64_t value) { return value; }
  static Value text(const std::string& value) { return Value::text(value); }

  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  jinja::Budget budget_{jinja::Limits()};
};

// The remainder has the sign of the divisor, and the quotient is rounded down.
TEST_F(JinjaArithmetic, DividesAsPython) {
  for (const auto& [a, b, quotient, rest] :
       {std::tuple{7, 2, "3", "1"}, {-7, 2, "-4", "1"}, {7, -2, "-4", "-1"}, {-7, -2, "3", "-1"}, {6, -2, "-3", "0"}}) {
    EXPECT_EQ(result(number(a), "//", number(b)), quotient) << a << " " << b;
    EXPECT_EQ(result(number(a), "%", number(b)), rest) << a << " " << b;
  }
  EXPECT_EQ(result(number(7), "/", number(2)), "3.5");
  EXPECT_EQ(result(number(4), "/", number(2)), "2.0") << "a quotient is never whole";
  EXPECT_EQ(result(-7.5, "//", number(2)), "-4.0");
  EXPECT_EQ(result(-7.5, "%", number(2)), "0.5");
}

TEST_F(JinjaArithmetic, WholeNumbersHave64Bits) {
  EXPECT_EQ(result(number(kMost - 1), "+", true), std::to_string(kMost));
  for (const auto& [a, sign, b] : {std::tuple{kMost, "+", int64_t{1}},
                                   {kLeast, "-", int64_t{1}},
                                   {kMost, "*", int64_t{2}},
                                   {kLeast, "//", int64_t{-1}}}) {
    EXPECT_EQ(arithmetic_failure(number(a), sign, number(b)), "a whole number has more than 64 bits") << a << sign << b;
  }
  EXPECT_EQ(result(number(kLeast), "%", number(-1)), "0") << "the processor's division would trap";
  EXPECT_EQ(result(number(kMost), "+", 1.0), "9.223372036854776e+18") << "a floating-point number has no such limit";
}

TEST_F(JinjaArithmetic, NothingIsDividedByZero) {
  for (const char* sign : {"/", "//", "%"}) {
    EXPECT_EQ(arithmetic_failure(number(1), sign, number(0)), "a division by zero") << sign;
    EXPECT_EQ(arithmetic_failure(1.5, sign, false), "a division by zero") << sign;
  }
}

TEST_F(JinjaArithmetic, TextsAndListsAreAddedToTheirOwnKind) {
  EXPECT_EQ(result(text("a"), "+", text("b")), "'ab'");
  const Value one = make_list({number(1)}, budget_), tuple = make_list({number(2)}, budget_, /*is_tuple=*/true);
  EXPECT_EQ(result(one, "+", one), "[1, 1]");
  EXPECT_EQ(result(tuple, "+", tuple), "(2, 2)");
  EXPECT_EQ(arithmetic_failure(one, "+", tuple), "a list + a tuple has no meaning");
  EXPECT_EQ(arithmetic_failure(text("a"), "+", number(1)), "a text + a whole number has no meaning");
  EXPECT_EQ(arithmetic_failure(jinja::undefined("\"x\" is undefined"), "+", number(1)), "\"x\" is undefined");
}

TEST_F(JinjaArithmetic, TextsAndListsAreRepeated) {
  EXPECT_EQ(result(text("ab"), "*", number(3)), "'ababab'");
  EXPECT_EQ(result(number(2), "*", make_list({number(1)}, budget_)), "[1, 1]");
  EXPECT_EQ(result(text("ab"), "*", number(-1)), "''");
  EXPECT_EQ(result(text(""), "*", number(kMost)), "''") << "the result is empty, so the limit does not matter";
  EXPECT_TRUE(has(arithmetic_failure(text("ab"), "*", number(kMost)), "is stopped")) << "before memory is allocated";
}

}  // namespace
}  // namespace meshtrain::testing
