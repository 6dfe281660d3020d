#include "runtime/text/jinja/whole_numbers.h"

#include <gtest/gtest.h>

#include "runtime/text/jinja/template.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

/// Returns the result of the filter int; "none" when it returns its default.
std::string whole_of(const std::string& text) {
  jinja::RenderOptions options;
  options.variables.emplace_back("x", jinja::Value::text(text));
  options.variables.emplace_back("none_given", jinja::Value::text("none"));
  return jinja::Template("t", "{{ x|int(none_given) }}").render(options).text;
}

TEST(WholeNumbersOfTexts, AreThoseOfPython) {
  for (const auto& [text, number] :
       std::vector<std::pair<std::string, std::string>>{{"42", "42"},
                                                        {" +5\n", "5"},
                                                        {"-5", "-5"},
                                                        {"1_000", "1000"},
                                                        {"٣٤", "34"},
                                                        {"4.7", "4"},
                                                        {"-4.7", "-4"},
                                                        {"1e3", "1000"},
                                                        {"١.5", "1"},
                                                        {"9223372036854775807", "9223372036854775807"}}) {
    EXPECT_EQ(whole_of(text), number) << text;
  }
}

TEST(WholeNumbersOfTexts, AreNoneWherePythonRaisesAnError) {
  for (const char* text : {"", "-", "x", "_1", "1__0", "1_", "+-5", "-+5", "1 2", "inf", "nan", "1e", "0x"}) {
    EXPECT_EQ(whole_of(text), "none") << text;
  }
}

TEST(WholeNumbersOfTexts, Have64Bits) {
  EXPECT_TRUE(has(message<jinja::TemplateError>([] { whole_of("9223372036854775808"); }), "more than 64 bits"));
  EXPECT_TRUE(has(message<jinja::TemplateError>([] { whole_of("1e30"); }), "more than 64 bits"));
}

}  // namespace
}  // namespace meshtrain::testing
