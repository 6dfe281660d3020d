#include "runtime/text/jinja/value.h"

#include <gtest/gtest.h>

#include "runtime/text/jinja/failure.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using jinja::Arguments;
using jinja::Dict;
using jinja::Failure;
using jinja::None;
using jinja::Value;

class JinjaValues : public ::testing::Test {
 protected:
  Value list(std::vector<Value> values, bool is_tuple = false) {
    return make_list(std::move(values), budget_, is_tuple);
  }
  static Value number(int64_t value) { return value; }
  static Value text(const std::string& value) { return Value::text(value); }
  static Value json(const std::string& value) { return jinja::from_json(nlohmann::ordered_json::parse(value)); }
  bool same(const Value& a, const Value& b) { return equal(a, b, budget_); }
  template <class Action>
  static std::string value_failure(const Action& action) {
    return message<Failure>(action);
  }

  jinja::Budget budget_{jinja::Limits()};
};

TEST_F(JinjaValues, AreTrueAsInPython) {
  for (const char* value : {"true", "1", "-1", "0.5", "\"a\"", "[0]", "{\"a\": 0}"}) EXPECT_TRUE(json(value).is_true());
  for (const char* value : {"false", "0", "0.0", "\"\"", "[]", "{}", "null"}) EXPECT_FALSE(json(value).is_true());
  EXPECT_FALSE(jinja::undefined("x").is_true());
}

TEST_F(JinjaValues, NumbersOfAnyKindAreEqualAndOtherKindsAreNot) {
  EXPECT_TRUE(same(true, number(1)));
  EXPECT_TRUE(same(number(1), 1.0));
  EXPECT_FALSE(same(number(1), text("1")));
  EXPECT_FALSE(same(None{}, number(0)));
  EXPECT_TRUE(same(json("{\"a\": 1, \"b\": [2]}"), json("{\"b\": [2.0], \"a\": 1}"))) << "in any order";
  EXPECT_FALSE(same(json("{\"a\": 1}"), json("{\"a\": 1, \"b\": 2}")));
  EXPECT_FALSE(same(list({number(1)}), list({number(1)}, /*is_tuple=*/true)));
  EXPECT_TRUE(same(jinja::undefined("x"), jinja::undefined("y")));
  // Compares them as whole numbers; as floating-point numbers they would be equal.
  EXPECT_FALSE(same(number(9007199254740993), number(9007199254740992)));
}

TEST_F(JinjaValues, HaveTheOrderOfPython) {
  EXPECT_EQ(compare(number(2), 2.5, budget_), -1);
  EXPECT_EQ(compare(text("b"), text("ab"), budget_), 1);
  EXPECT_EQ(compare(text("z"), text("é"), budget_), -1) << "by code points";
  EXPECT_EQ(compare(json("[1, 2]"), json("[1, 3]"), budget_), -1);
  EXPECT_EQ(compare(json("[1]"), json("[1, 0]"), budget_), -1);
  EXPECT_EQ(value_failure([&] { compare(text("a"), number(1), budget_); }), "a text and a whole number have no order");
  EXPECT_EQ(value_failure([&] { compare(jinja::undefined("\"x\" is undefined"), number(1), budget_); }),
            "\"x\" is undefined");
}

TEST_F(JinjaValues, AreInTextsListsAndKeys) {
  EXPECT_TRUE(contains(text("abc"), text("bc"), budget_));
  EXPECT_TRUE(contains(json("[1, 2]"), 2.0, budget_));
  EXPECT_TRUE(contains(json("{\"a\": 1}"), text("a"), budget_));
  EXPECT_FALSE(contains(json("{\"a\": 1}"), number(1), budget_)) << "a value is not a key";
  EXPECT_FALSE(contains(jinja::undefined("x"), number(1), budget_));
  EXPECT_EQ(value_failure([&] { contains(number(1), number(1), budget_); }), "nothing is in a whole number");
}

TEST_F(JinjaValues, HaveElements) {
  const auto joined = [&](const Value& value) {
    std::string all;
    for (const Value& each : elements(value, budget_)) all += "[" + each.text() + "]";
    return all;
  };
  EXPECT_EQ(joined(text("aé")), "[a][é]");
  EXPECT_EQ(joined(json("{\"b\": 1, \"a\": 2}")), "[b][a]") << "keys, in their order";
  EXPECT_EQ(joined(jinja::undefined("x")), "");
  EXPECT_EQ(value_failure([&] { elements(None{}, budget_); }), "none has no elements to go through");
}

TEST_F(JinjaValues, AWrongKindIsNamedInTheError) {
  EXPECT_EQ(value_failure([&] { text("a").list(); }), "this is a text, but a list is needed");
  EXPECT_EQ(value_failure([&] { list({}, /*is_tuple=*/true).text(); }), "this is a tuple, but a text is needed");
  EXPECT_EQ(value_failure([&] { static_cast<void>(Value(1.5).whole()); }),
            "this is a number, but a whole number is needed");
  EXPECT_EQ(value_failure([&] { jinja::undefined("\"x\" is undefined").dict(); }), "\"x\" is undefined");
  EXPECT_EQ(Value(true).whole(), 1);
}

TEST_F(JinjaValues, DictionariesKeepTheOrderInWhichKeysCame) {
  Dict dict;
  const auto key = [](int i) { return "k" + std::to_string(i); };
  for (int i = 40; i > 0; --i) dict.set(key(i), number(i));  // too many to be searched one by one
  dict.set(key(7), text("new"));
  ASSERT_EQ(dict.size(), 40u);
  EXPECT_EQ(dict.entries().front().first, "k40");
  EXPECT_EQ(dict.entries().back().first, "k1");
  for (int i = 1; i <= 40; ++i) {
    ASSERT_NE(dict.find(key(i)), nullptr) << i;
    EXPECT_TRUE(same(*dict.find(key(i)), i == 7 ? text("new") : number(i))) << i;
  }
  EXPECT_EQ(dict.find("k0"), nullptr);
}

TEST_F(JinjaValues, FromJsonHaveWholeNumbersOf64Bits) {
  EXPECT_TRUE(json("9223372036854775807").is_int());
  EXPECT_TRUE(json("1.0").is_float());
  EXPECT_TRUE(value_failure([&] { json("9223372036854775808"); }).starts_with("the whole number 9223372036854775808 "));
  EXPECT_NE(value_failure([&] { json("1e300"); }), "");
}

TEST_F(JinjaValues, AreNestedToALimitedDepth) {
  Value nested = number(1);
  const std::string refused = value_failure([&] {
    for (int i = 0; i < 1000; ++i) nested = list({nested});
  });
  EXPECT_EQ(refused, "lists are nested more than 300 levels deep");
  EXPECT_EQ(nested.depth(), 300);
  Dict dict;
  EXPECT_NE(value_failure([&] { dict.set("a", nested); }), "") << "through dictionaries too";
}

TEST_F(JinjaValues, ArgumentsAreFoundByPositionOrName) {
  const Arguments arguments{{number(1)}, {{"b", number(2)}}};
  EXPECT_TRUE(same(arguments.needed(0, "a"), number(1)));
  EXPECT_TRUE(same(arguments.needed(1, "b"), number(2)));
  EXPECT_EQ(arguments.find(1, "a"), nullptr);
  EXPECT_EQ(value_failure([&] { arguments.needed(1, "c"); }), "the argument c is missing");
  EXPECT_EQ(value_failure([&] { arguments.check(1, {"b"}); }), "");
  EXPECT_EQ(value_failure([&] { arguments.check(0, {"b"}); }), "1 argument is given, but at most 0 accepted");
  EXPECT_EQ(value_failure([&] { arguments.check(1, {"a"}); }), "there is no argument b");
}

}  // namespace
}  // namespace meshtrain::testing
