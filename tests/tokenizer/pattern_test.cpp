#include "runtime/text/tokenizer/pattern.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;

std::vector<std::string> matches(const std::string& expression, const std::string& text) {
  const Pattern pattern(expression);
  Pattern::Alternatives alternatives;
  std::vector<std::string> all;
  for (size_t from = 0; from < text.size();) {
    const std::string_view match = pattern.find(text, from, alternatives);
    if (match.empty()) break;
    all.emplace_back(match);
    from = static_cast<size_t>(match.data() + match.size() - text.data());
  }
  EXPECT_TRUE(alternatives.states.empty()) << expression;
  return all;
}

using Texts = std::vector<std::string>;

// Oniguruma's results for these.
TEST(Pattern, MatchesAsOniguruma) {
  EXPECT_EQ(matches("a|ab", "abab"), (Texts{"a", "a"})) << "the first alternative, not the longest";
  EXPECT_EQ(matches("ab|a", "aba"), (Texts{"ab", "a"}));
  EXPECT_EQ(matches("a+b", "aab aac ab"), (Texts{"aab", "ab"}));
  EXPECT_EQ(matches("a*ab", "aaab"), (Texts{"aaab"}));
  EXPECT_EQ(matches("a++ab", "aaab"), (Texts{}));
  EXPECT_EQ(matches("a+?b?", "aab"), (Texts{"a", "ab"}));
  EXPECT_EQ(matches("(ab)*?c", "ababc"), (Texts{"ababc"}));
  EXPECT_EQ(matches("(?:ab|a)*+b", "ababb aab"), (Texts{"ababb", "b"}));
  EXPECT_EQ(matches("(?:a|b){2,3}", "abbab"), (Texts{"abb", "ab"}));
  EXPECT_EQ(matches("x{2}", "xxxxx"), (Texts{"xx", "xx"}));
  EXPECT_EQ(matches("x{2,}", "x xx xxxx"), (Texts{"xx", "xxxx"}));
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "a   b "), (Texts{"  ", " ", " "}));
  EXPECT_EQ(matches("a(?=b)", "ab ac"), (Texts{"a"}));
  EXPECT_EQ(matches("[^a-c\\s]+", "abcd ef"), (Texts{"d", "ef"}));
  EXPECT_EQ(matches("[\\-a]+", "b-a-b"), (Texts{"-a-"}));
  EXPECT_EQ(matches("[a-]+", "b-a-b"), (Texts{"-a-"}));
  EXPECT_EQ(matches("(?i:'s|k)+", "'S'\u017F\u212AK"), (Texts{"'S'\u017F\u212AK"}));
  EXPECT_EQ(matches("(?i:a)b", "AbAB"), (Texts{"Ab"}));
  EXPECT_EQ(matches(".+", "ab\ncd"), (Texts{"ab", "cd"}));
  EXPECT_EQ(matches("\\p{Lu}\\P{Lu}+", "AbcÄöü1"), (Texts{"Abc", "Äöü1"}));
  EXPECT_EQ(matches("\\p{^L}+", "a1 2b"), (Texts{"1 2"}));
  EXPECT_EQ(matches("[\\p{N}\\D]", "1a"), (Texts{"1", "a"}));
  EXPECT_EQ(matches("\\x41\\x{1F600}", "A\U0001F600"), (Texts{"A\U0001F600"}));
  EXPECT_EQ(matches("\\d+", "1\u0663a"), (Texts{"1\u0663"}));
}

TEST(Pattern, FindsLiterals) {
  const std::string text = "a.b*c\\(d)[e]{f}^$|?+";
  const Pattern pattern = Pattern::literal(text);
  Pattern::Alternatives alternatives;
  const std::string around = "x" + text + "x";
  EXPECT_EQ(pattern.find(around, 0, alternatives), text);
}

TEST(Pattern, RefusesWhatItDoesNotKnow) {
  const auto refusal = [](const std::string& expression) {
    return message<InputError>([&] { Pattern p(expression); });
  };
  EXPECT_EQ(refusal("a(?<=b)"),
            "the regular expression a(?<=b) has a group other than (...), (?:...), (?i:...), (?=...) and (?!...) at "
            "byte 2");
  EXPECT_TRUE(has(refusal("\\w+"), "the escape \\w, which is not supported, at byte 2"));
  EXPECT_TRUE(has(refusal("\\p{Greek}"), "the property \"Greek\""));
  for (const char* expression : {"^a",
                                 "a$",
                                 "[a",
                                 "(a",
                                 "a)",
                                 "a**",
                                 "a{2}{3}",
                                 "*a",
                                 "[[:alpha:]]",
                                 "[a&&b]",
                                 "[z-a]",
                                 "[]",
                                 "a{",
                                 "a{3,2}",
                                 "a{0}",
                                 "a{99999999999}",
                                 "\\",
                                 "[\\",
                                 "(?",
                                 "(?i:\u00e4)",
                                 "(?i:ss)",
                                 "(?i:[a-z])",
                                 "(a*)*",
                                 "a*",
                                 "|a",
                                 "",
                                 "(?=a)",
                                 "(?!a)*b",
                                 "\\p{L",
                                 "\\pL",
                                 "\\x{110000}",
                                 "\\x{D800}",
                                 "\\xff",
                                 "(?i)a",
                                 "\\1",
                                 "\xff",
                                 "((((a{1000}){1000}){1000}){1000})"}) {
    EXPECT_NE(refusal(expression), "") << expression;
  }
  EXPECT_NE(refusal(std::string(10'000, 'a')), "");
  EXPECT_NE(refusal(std::string(200, '(').append("a").append(200, ')')), "");
}

TEST(Pattern, GivesUpInsteadOfHanging) {
  const Pattern pattern("(?:a|aa)+b");
  const std::string text(60, 'a');
  Pattern::Alternatives alternatives;
  EXPECT_TRUE(has(message<InputError>([&] { pattern.find(text, 0, alternatives); }), "backtracking steps"));
}

TEST(Pattern, NeedsNoDepthForLongTexts) {
  const std::string text(3'000'000, 'a');
  EXPECT_EQ(matches("(?:a|b)+", text).size(), 1U);
  EXPECT_EQ(matches("a+", text).size(), 1U);
}

TEST(Pattern, TakesTimeInProportionToALongRun) {
  const std::string spaces(1 << 20, ' ');
  for (const char* expression : {R"(\s+\n|\s)", R"(\s+\n|\S+)", R"(\s*[\r\n]+|\s+(?!\S)|\s)", R"((?:\s+x)+|\s)"}) {
    const Pattern pattern(expression);
    Pattern::Alternatives memory;
    size_t num_matches = 0;
    for (const std::string& text : {spaces + "a", spaces}) {
      for (size_t at = 0; at < text.size(); ++num_matches) {
        const std::string_view found = pattern.find(text, at, memory);
        at = static_cast<size_t>(found.data() - text.data()) + found.size();
      }
      EXPECT_LT(memory.steps, 8 * text.size()) << expression;
      EXPECT_LT(memory.scanned, 8 * text.size()) << expression;
    }
    EXPECT_GT(num_matches, 0U);
  }
}

TEST(Pattern, ForgetsTheTextBefore) {
  const Pattern pattern(R"(\s+\n|\s)");
  Pattern::Alternatives memory;
  std::string text(200, ' ');
  EXPECT_EQ(pattern.find(text, 0, memory).size(), 1U);
  text[150] = '\n';  // the same memory and length
  EXPECT_EQ(pattern.find(text, 0, memory).size(), 151U);
  EXPECT_EQ(pattern.find(text, 1, memory).size(), 150U);
  EXPECT_EQ(pattern.find(text, 151, memory).size(), 1U);
}

}  // namespace
}  // namespace meshtrain
