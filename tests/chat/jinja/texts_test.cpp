#include "runtime/text/jinja/texts.h"

#include <gtest/gtest.h>

#include "runtime/text/jinja/failure.h"

namespace meshtrain::testing {
namespace {

using jinja::Failure;
using Parts = std::vector<std::string_view>;

TEST(PythonTexts, CountCharactersAndFindBytes) {
  EXPECT_EQ(jinja::length_of("aé😀"), 3u);
  EXPECT_EQ(jinja::characters("aé😀"), (Parts{"a", "é", "😀"}));
  EXPECT_EQ(jinja::find_text("abcabc", "c", 3), 5u);
  EXPECT_EQ(jinja::find_text("abc", "", 3), 3u);
  EXPECT_EQ(jinja::find_text("abc", "", 4), std::string::npos);
}

TEST(PythonTexts, StripSpacesOfPythonOrASet) {
  EXPECT_EQ(jinja::strip(" \t\u00a0\x1f a b\u2003\n"), "a b");
  const std::string set = "xé";
  EXPECT_EQ(jinja::strip("xéaxbéx", &set), "axb");
  EXPECT_EQ(jinja::strip_left("xax", &set), "ax");
  EXPECT_EQ(jinja::strip_right("xax", &set), "xa");
  EXPECT_EQ(jinja::strip("\u200b"), "\u200b") << "Python does not call it a space";
}

TEST(PythonTexts, SplitAtSeparators) {
  const std::string comma = ",";
  EXPECT_EQ(jinja::split("a,b,,c", &comma, -1), (Parts{"a", "b", "", "c"}));
  EXPECT_EQ(jinja::split("a,b,,c", &comma, 1), (Parts{"a", "b,,c"}));
  EXPECT_EQ(jinja::split("", &comma, -1), (Parts{""}));
  EXPECT_EQ(jinja::split_from_right("a,b,c", &comma, 1), (Parts{"a,b", "c"}));
  EXPECT_EQ(jinja::split_from_right("a,b,c", &comma, 0), (Parts{"a,b,c"}));
  const std::string empty;
  EXPECT_THROW(jinja::split("a", &empty, -1), Failure);
  EXPECT_THROW(jinja::split_from_right("a", &empty, 1), Failure);
}

TEST(PythonTexts, SplitAtRunsOfSpaces) {
  EXPECT_EQ(jinja::split("  a \n b  ", nullptr, -1), (Parts{"a", "b"}));
  EXPECT_EQ(jinja::split(" a  b  c ", nullptr, 1), (Parts{"a", "b  c "})) << "spaces at the end stay";
  EXPECT_EQ(jinja::split_from_right(" a  b  c ", nullptr, 1), (Parts{" a  b", "c"}));
  EXPECT_EQ(jinja::split(" ", nullptr, -1), Parts{});
}

TEST(PythonTexts, SplitLines) {
  EXPECT_EQ(jinja::split_lines("a\r\nb\n\nc\u2028d\x1c"), (Parts{"a", "b", "", "c", "d"}));
  EXPECT_EQ(jinja::split_lines("a\x1f"), (Parts{"a\x1f"})) << "a space that does not end a line";
}

TEST(PythonTexts, ReplaceAtMostTheGivenNumber) {
  EXPECT_EQ(jinja::replace("aXbXc", "X", "--", -1), "a--b--c");
  EXPECT_EQ(jinja::replace("aXbXc", "X", "--", 1), "a--bXc");
  EXPECT_EQ(jinja::replace("aé", "", "-", -1), "-a-é-");
  EXPECT_EQ(jinja::replace("aé", "", "-", 2), "-a-é");
  EXPECT_EQ(jinja::replace("aaa", "aa", "b", -1), "ba") << "without overlaps";
}

TEST(PythonTexts, ReplacingIsMeasuredBeforeItIsDone) {
  for (const auto& [old, by] : {std::pair<std::string, std::string>{"X", "--"}, {"X", ""}, {"", "-"}, {"é", "e"}}) {
    const auto size = static_cast<int64_t>(jinja::replace("aXbXé", old, by, -1).size());
    EXPECT_EQ(jinja::replaced_size("aXbXé", old, by, -1), size) << old << " " << by;
  }
  EXPECT_EQ(jinja::replaced_size("aXbXc", "X", "--", 1), 6);
}

TEST(PythonTexts, ChangeTheCaseOfAsciiAndRefuseOtherLetters) {
  EXPECT_EQ(jinja::upper("aZ1"), "AZ1");
  EXPECT_EQ(jinja::lower("aZ1你"), "az1你");
  EXPECT_EQ(jinja::capitalize("hELLO wORLD"), "Hello world");
  EXPECT_EQ(jinja::title("it's a foo-bar"), "It'S A Foo-Bar");
  EXPECT_EQ(jinja::upper("ÀA"), "ÀA") << "a capital letter stays";
  EXPECT_THROW(jinja::upper("é"), Failure);
  EXPECT_THROW(jinja::lower("É"), Failure);
  EXPECT_EQ(jinja::lower("é"), "é");
}

}  // namespace
}  // namespace meshtrain::testing
