#include "runtime/text/jinja/lexer.h"

#include <gtest/gtest.h>

#include "tests/chat/jinja/parsed.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using jinja::normalized_source;
using jinja::Token;
using jinja::tokenize;

class JinjaLexer : public ::testing::Test {
 protected:
  using Kind = Token::Kind;

  /// Returns the parts of the template outside tags, each in brackets.
  static std::string data_of(const std::string& source) {
    std::string all;
    for (const Token& token : tokenize(source, kFailInTemplate)) {
      if (token.kind == Kind::Data) all += "[" + token.text + "]";
    }
    return all;
  }
  /// Returns the only token of "{{ source }}".
  static Token token_of(const std::string& source) {
    const std::vector<Token> tokens = tokenize("{{ " + source + " }}", kFailInTemplate);
    EXPECT_EQ(tokens.size(), 4u) << source;
    return tokens.at(1);
  }
  static std::string lexing_error(const std::string& source) {
    return message<std::runtime_error>([&] { tokenize(source, kFailInTemplate); });
  }
};

TEST_F(JinjaLexer, EndsOfLinesAreOneByteAndTheLastOneGoes) {
  EXPECT_EQ(normalized_source("a\r\nb\rc\n\n"), "a\nb\nc\n");
  EXPECT_EQ(normalized_source("\r\n"), "");
}

TEST_F(JinjaLexer, TokensHaveTheirBytesInTheSource) {
  const std::vector<Token> tokens = tokenize("é {% if a<=1 %}", kFailInTemplate);
  const std::vector<std::pair<Kind, size_t>> expected = {{Kind::Data, 0},      {Kind::BlockBegin, 3}, {Kind::Name, 6},
                                                         {Kind::Name, 9},      {Kind::Operator, 10},  {Kind::Whole, 12},
                                                         {Kind::BlockEnd, 14}, {Kind::End, 16}};
  ASSERT_EQ(tokens.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(tokens[i].kind, expected[i].first) << i;
    EXPECT_EQ(tokens[i].at, expected[i].second) << i;
  }
  EXPECT_EQ(tokens[4].text, "<=") << "the longest operator";
}

// trim_blocks removes the line end after a block, lstrip_blocks the spaces before a block on its line.
TEST_F(JinjaLexer, BlocksTakeTheirLineAndPrintsDoNot) {
  EXPECT_EQ(data_of("a\n  {% x %}\nb\n"), "[a\n][b\n]");
  EXPECT_EQ(data_of("a\n  {# x #}\nb"), "[a\n][b]");
  EXPECT_EQ(data_of("a\n  {{ x }}\nb"), "[a\n  ][\nb]");
  EXPECT_EQ(data_of("a  {% x %}\n\nb"), "[a  ][\nb]") << "spaces after text stay, and one line end is removed";
  EXPECT_EQ(data_of("  {% x %}a"), "[a]") << "the template begins a line";
  EXPECT_EQ(data_of("{{ x }}  {% y %}a"), "[  ][a]") << "the line has a print before";
}

TEST_F(JinjaLexer, SignsOverrideThat) {
  EXPECT_EQ(data_of("a\n \t{%- x -%} \n b"), "[a][b]");
  EXPECT_EQ(data_of("a\n  {%+ x +%}\nb"), "[a\n  ][\nb]");
  EXPECT_EQ(data_of("a \n{{- x -}}\n b"), "[a][b]");
  EXPECT_EQ(data_of("a \n{#- x -#}\n b"), "[a][b]");
}

TEST_F(JinjaLexer, TextsHaveTheEscapesOfPython) {
  EXPECT_EQ(token_of(R"('a\'b"c')").text, "a'b\"c");
  EXPECT_EQ(token_of(R"("\x41\u00e9\U0001F600\n\t\\")").text, "A\u00e9\U0001F600\n\t\\");
  EXPECT_EQ(token_of(R"('\q')").text, "\\q");
  EXPECT_EQ(token_of("'a\\\nb'").text, "ab") << "a line that continues";
  EXPECT_EQ(lexing_error(R"({{ '\ud83d' }})"), "4: this escape is not a character");
  EXPECT_EQ(lexing_error(R"({{ '\x4' }})"), "4: this escape is not a character");
}

TEST_F(JinjaLexer, NumbersAreWholeOrFloatingPoint) {
  EXPECT_EQ(token_of("42").kind, Kind::Whole);
  for (const char* number : {"1.5", "1e3", "1.5E-3"}) EXPECT_EQ(token_of(number).kind, Kind::Float) << number;
  const std::vector<Token> tokens = tokenize("{{ a.0.1 }}", kFailInTemplate);
  ASSERT_EQ(tokens.size(), 8u) << "0.1 here means item 1 of item 0";
  EXPECT_EQ(tokens[5].kind, Kind::Whole);
  EXPECT_EQ(tokens[5].text, "1");
}

TEST_F(JinjaLexer, BracketsHideTheEndOfATag) {
  EXPECT_EQ(tokenize("{{ {'a': {}}}}", kFailInTemplate).size(), 9u) << "both brackets of }}}} come first";
  EXPECT_EQ(lexing_error("{{ (1] }}"), "5: this ] closes nothing");
  EXPECT_EQ(lexing_error("{{ ) }}"), "3: this ) closes nothing");
}

TEST_F(JinjaLexer, ErrorsAreWhereSomethingBegins) {
  EXPECT_EQ(lexing_error("ab {{ 1"), "3: the tag that begins here has no end: }}");
  EXPECT_EQ(lexing_error("ab {% x"), "3: the tag that begins here has no end: %}");
  EXPECT_EQ(lexing_error("ab {# x"), "3: the comment that begins here has no end: #}");
  EXPECT_EQ(lexing_error("{{ 'x }}"), "3: the text that begins here has no end");
  EXPECT_EQ(lexing_error("{{ a $ b }}"), "5: the character '$' has no meaning here");
}

}  // namespace
}  // namespace meshtrain::testing
