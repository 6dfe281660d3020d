#include "runtime/text/jinja/parser.h"

#include <gtest/gtest.h>

#include "tests/chat/jinja/parsed.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using Kind = jinja::Statement::Kind;

class JinjaStatements : public ::testing::Test {
 protected:
  static std::string statement_error(const std::string& source) {
    return message<std::runtime_error>([&] { parsed(source); });
  }
};

TEST_F(JinjaStatements, TextAndTagsKeepTheirOrder) {
  const jinja::Body body = parsed("a{{ b }}{% set c = 1 %}d");
  ASSERT_EQ(body.size(), 4u);
  EXPECT_EQ(body[0]->text, "a");
  EXPECT_EQ(body[1]->kind, Kind::Print);
  EXPECT_EQ(body[2]->target.name, "c");
  EXPECT_EQ(body[2]->at, 11u) << "messages point at its word";
  EXPECT_EQ(body[3]->text, "d");
}

TEST_F(JinjaStatements, AnIfHasABranchForEachConditionAndTheElse) {
  const auto body = parsed("{% if a %}1{% elif b %}2{% else %}3{% endif %}");
  const auto& branches = body.at(0)->branches;
  ASSERT_EQ(branches.size(), 3u);
  EXPECT_EQ(branches[1].condition->name, "b");
  EXPECT_EQ(branches[1].body.at(0)->text, "2");
  EXPECT_EQ(branches[2].condition, nullptr);
  EXPECT_EQ(branches[2].body.at(0)->text, "3");
}

TEST_F(JinjaStatements, AForHasTargetsAConditionAndAnElse) {
  const auto body = parsed("{% for a, (b, c) in d if e %}1{% else %}2{% endfor %}");
  const jinja::Statement& loop = *body.at(0);
  ASSERT_EQ(loop.target.targets.size(), 2u);
  EXPECT_EQ(loop.target.targets[0].name, "a");
  EXPECT_EQ(loop.target.targets[1].targets.at(1).name, "c");
  EXPECT_EQ(loop.expression->name, "d");
  EXPECT_EQ(loop.condition->name, "e");
  EXPECT_EQ(loop.otherwise.at(0)->text, "2");
}

TEST_F(JinjaStatements, ASetTakesAnExpressionOrABlock) {
  const auto body = parsed("{% set n.x = 1, 2 %}{% set y | trim %}z{% endset %}");
  EXPECT_EQ(body.at(0)->target.attribute, "x");
  EXPECT_EQ(body.at(0)->expression->kind, jinja::Expression::Kind::Tuple);
  EXPECT_EQ(body.at(1)->kind, Kind::SetBlock);
  EXPECT_EQ(body.at(1)->filter->name, "trim");
  EXPECT_EQ(body.at(1)->body.at(0)->text, "z");
}

TEST_F(JinjaStatements, AMacroHasParametersWithDefaultsAfterThoseWithout) {
  const auto body = parsed("{% macro m(a, b=1) %}x{% endmacro %}{% call(c) m(2) %}y{% endcall %}");
  ASSERT_EQ(body.at(0)->parameters.size(), 2u);
  EXPECT_EQ(body[0]->parameters[0].initial, nullptr);
  EXPECT_NE(body[0]->parameters[1].initial, nullptr);
  EXPECT_EQ(body.at(1)->parameters.at(0).name, "c");
  EXPECT_EQ(statement_error("{% macro m(a=1, b) %}{% endmacro %}"),
            "17: a parameter without a default follows one that has a default");
}

TEST_F(JinjaStatements, BreakAndContinueStandInALoopOfTheSameMacro) {
  EXPECT_EQ(statement_error("{% for a in b %}{% if c %}{% break %}{% else %}{% continue %}{% endif %}{% endfor %}"),
            "");
  EXPECT_EQ(statement_error("{% break %}"), "3: break is outside a loop");
  EXPECT_EQ(statement_error("{% for a in b %}{% else %}{% continue %}{% endfor %}"), "29: continue is outside a loop");
  EXPECT_EQ(statement_error("{% for a in b %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}"),
            "34: break is outside a loop");
}

TEST_F(JinjaStatements, UnfinishedOnesAreNamedWhereTheyBegin) {
  EXPECT_EQ(statement_error("a{% if b %}{% for c in d %}e{% endif %}"), "31: {% endif %} is not a statement here");
  EXPECT_EQ(statement_error("a{% if b %}{% for c in d %}e"), "14: the for that begins here has no end");
  EXPECT_EQ(statement_error("a{% if b %}"), "4: the if that begins here has no end");
  EXPECT_EQ(statement_error("{% endfor %}"), "3: {% endfor %} is not a statement here");
}

TEST_F(JinjaStatements, OnesThatReadOtherFilesAreRefused) {
  for (const std::string word : {"include", "import", "from", "extends", "block"}) {
    EXPECT_EQ(statement_error("{% " + word + " 'x' %}"), "3: {% " + word + " %} is not supported in chat templates");
  }
}

TEST_F(JinjaStatements, NothingIsAssignedToAConstant) {
  EXPECT_EQ(statement_error("{% set none = 1 %}"), "7: nothing can be assigned to none");
  EXPECT_EQ(statement_error("{% for (a, True) in b %}{% endfor %}"), "11: nothing can be assigned to True");
}

}  // namespace
}  // namespace meshtrain::testing
