#include "runtime/text/jinja/expression_parser.h"

#include <gtest/gtest.h>

#include "runtime/text/jinja/printing.h"
#include "tests/chat/jinja/parsed.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using jinja::Expression;

class JinjaExpressions : public ::testing::Test {
 protected:
  /// Returns the tree of an expression: "(+ 1 (* 2 x))".
  static std::string tree(const std::string& source) {
    const jinja::Body body = parsed("{{ " + source + " }}");
    return text_of(*body.at(0)->expression);
  }
  static std::string parse_error(const std::string& source) {
    return message<std::runtime_error>([&] { tree(source); });
  }

 private:
  static std::string head_of(const Expression& expression) {
    using Kind = Expression::Kind;
    switch (expression.kind) {
      case Kind::List:
        return "list";
      case Kind::Tuple:
        return "tuple";
      case Kind::Dict:
        return "dict";
      case Kind::Choice:
        return "if";
      case Kind::And:
        return "and";
      case Kind::Or:
        return "or";
      case Kind::Not:
        return "not";
      case Kind::Negative:
        return "-";
      case Kind::Positive:
        return "+";
      case Kind::Concat:
        return "~";
      case Kind::Attribute:
        return "." + expression.name;
      case Kind::Item:
        return "item";
      case Kind::Slice:
        return "slice";
      case Kind::Call:
        return "call";
      case Kind::Filter:
        return "|" + expression.name;
      case Kind::Test:
        return "is " + expression.name;
      default:
        return expression.name;
    }
  }
  static std::string text_of(const Expression& expression) {
    if (expression.kind == Expression::Kind::Name) return expression.name;
    if (expression.kind == Expression::Kind::Constant) {
      jinja::Budget budget{jinja::Limits()};
      return to_repr(expression.value, budget);
    }
    std::string text = "(" + head_of(expression);
    for (size_t i = 0; i < expression.parts.size(); ++i) {
      if (expression.kind == Expression::Kind::Compare && i > 0) text += " " + expression.names[i - 1];
      text += " " + (expression.parts[i] ? text_of(*expression.parts[i]) : std::string("_"));
    }
    for (const auto& argument : expression.positional) text += " " + text_of(*argument);
    for (const auto& [key, argument] : expression.named) text += " " + key + "=" + text_of(*argument);
    return text + ")";
  }
};

TEST_F(JinjaExpressions, HaveThePrecedenceOfJinja) {
  EXPECT_EQ(tree("1 + 2 * x - 3"), "(- (+ 1 (* 2 x)) 3)");
  EXPECT_EQ(tree("a // b % c / d"), "(/ (% (// a b) c) d)");
  EXPECT_EQ(tree("a + b ~ c * d"), "(+ a (~ b (* c d)))") << "~ binds more tightly than +";
  EXPECT_EQ(tree("not a or b and not c"), "(or (not a) (and b (not c)))");
  EXPECT_EQ(tree("not a == b"), "(not ( a == b))");
  EXPECT_EQ(tree("1 < x <= 2 not in y"), "( 1 < x <= 2 not in y)") << "one chain";
  EXPECT_EQ(tree("a ~ b ~ c"), "(~ a b c)");
}

TEST_F(JinjaExpressions, SignsBindMoreTightlyThanFiltersAndLessThanAttributes) {
  EXPECT_EQ(tree("-x.y"), "(- (.y x))");
  EXPECT_EQ(tree("-x|abs"), "(|abs (- x))");
  EXPECT_EQ(tree("- + x"), "(- (+ x))");
  EXPECT_EQ(tree("a + b|f"), "(+ a (|f b))");
}

TEST_F(JinjaExpressions, ChoicesAreNestedAtTheirElse) {
  EXPECT_EQ(tree("a if b"), "(if a b _)");
  EXPECT_EQ(tree("a if b else c if d else e"), "(if a b (if c d e))");
  EXPECT_EQ(tree("a or b if c or d else e"), "(if (or a b) (or c d) e)");
}

TEST_F(JinjaExpressions, CommasMakeATupleAndBracketsAloneDoNot) {
  EXPECT_EQ(tree("(a)"), "a");
  EXPECT_EQ(tree("(a,)"), "(tuple a)");
  EXPECT_EQ(tree("a, b"), "(tuple a b)");
  EXPECT_EQ(tree("()"), "(tuple)");
  EXPECT_EQ(tree("[a, (b, c),]"), "(list a (tuple b c))");
  EXPECT_EQ(tree("{'a': 1, b: [],}"), "(dict 'a' 1 b (list))");
}

TEST_F(JinjaExpressions, PostfixesFollowOneAnother) {
  EXPECT_EQ(tree("a.b[0].c(1, k=d)['e']"), "(item (call (.c (item (.b a) 0)) 1 k=d) 'e')");
  EXPECT_EQ(tree("a.0.1"), "(item (item a 0) 1)");
  EXPECT_EQ(tree("a[1:]"), "(slice a 1 _ _)");
  EXPECT_EQ(tree("a[::-1]"), "(slice a _ _ (- 1))");
  EXPECT_EQ(tree("a[:b:c]"), "(slice a _ b c)");
}

TEST_F(JinjaExpressions, TestsTakeOneValueWithoutBrackets) {
  EXPECT_EQ(tree("a is defined and b"), "(and (is defined a) b)");
  EXPECT_EQ(tree("a is not none"), "(not (is none a))");
  EXPECT_EQ(tree("a is eq b.c"), "(is eq a (.c b))");
  EXPECT_EQ(tree("a is in [1, 2]"), "(is in a (list 1 2))");
  EXPECT_EQ(tree("a is eq(b) if c is string else d"), "(if (is eq a b) (is string c) d)");
  EXPECT_EQ(tree("a is f is g"), "(is g (is f a))");
}

TEST_F(JinjaExpressions, FiltersTakeArgumentsAndDottedNames) {
  EXPECT_EQ(tree("a|f(1, k=2)|g.h"), "(|g.h (|f a 1 k=2))");
  EXPECT_EQ(tree("'a' 'b'|f"), "(|f 'ab')") << "adjacent texts are joined";
}

TEST_F(JinjaExpressions, WordsOfConstantsAreInBothSpellings) {
  EXPECT_EQ(tree("[true, True, false, False, none, None, nOne]"), "(list True True False False None None nOne)");
}

TEST_F(JinjaExpressions, AreRefusedWhereTheyGoWrong) {
  EXPECT_EQ(parse_error("1 +"), "7: an expression is expected, but here is }}");
  EXPECT_EQ(parse_error("f(a=1, 2)"), "10: a positional argument follows a named one");
  EXPECT_EQ(parse_error("f(*a)"), "5: * and ** in arguments are not supported");
  EXPECT_EQ(parse_error("9223372036854775808"), "3: this whole number has more than 64 bits");
  EXPECT_EQ(parse_error("[1 2]"), "6: \",\" is expected, but here is \"2\"");
  EXPECT_EQ(parse_error("a b"), "5: }} is expected, but here is \"b\"");
}

TEST_F(JinjaExpressions, AChainIsAsDeepAsItsParts) {
  std::string sum = "1", filters = "a";
  for (int i = 0; i < 190; ++i) sum += " + 1", filters += "|f";
  EXPECT_EQ(parse_error(sum), "");
  EXPECT_EQ(parse_error(filters), "");
  for (int i = 0; i < 20; ++i) sum += " + 1", filters += "|f";
  EXPECT_TRUE(has(parse_error(sum), "the expression is nested too deeply"));
  EXPECT_TRUE(has(parse_error(filters), "the expression is nested too deeply"));
}

}  // namespace
}  // namespace meshtrain::testing
