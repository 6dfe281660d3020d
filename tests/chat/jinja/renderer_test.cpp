#include "runtime/text/jinja/renderer.h"

#include <gtest/gtest.h>

#include "tests/chat/jinja/parsed.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using jinja::RenderOptions;
using jinja::RenderResult;

class JinjaRenderer : public ::testing::Test {
 protected:
  JinjaRenderer() {
    const jinja::Value messages = jinja::from_json(nlohmann::ordered_json::parse(
        R"([{"role": "user", "text": "a"}, {"role": "bot", "text": "é"}, {"role": "user", "text": ""}])"));
    options_.messages = messages.list_ptr();
    options_.variables.emplace_back("messages", messages);
  }

  RenderResult render(const std::string& source) const {
    const jinja::Body body = parsed(source);
    return jinja::Renderer(options_, kFailInTemplate).render(body);
  }
  std::string text(const std::string& source) const { return render(source).text; }
  std::string render_error(const std::string& source) const {
    return message<std::runtime_error>([&] { render(source); });
  }
  /// Returns, for each span, the index of its message and its text.
  std::string spans(const std::string& source) const {
    const RenderResult rendered = render(source);
    std::string all;
    for (const auto& [index, span] : rendered.message_spans) {
      all += std::to_string(index) + "[" + rendered.text.substr(span.begin, span.end - span.begin) + "]";
    }
    return all;
  }

  RenderOptions options_;
};

TEST_F(JinjaRenderer, MarksWhatEachRoundOverTheMessagesHasWritten) {
  EXPECT_EQ(spans("x{% for m in messages %}{{ m.text }}{% endfor %}y"), "0[a]1[é]")
      << "a round that wrote nothing has no span";
  EXPECT_EQ(spans("{% for m in messages[1:] %}<{{ m.text }}>{% endfor %}"), "1[<é>]2[<>]")
      << "indices in the complete list";
  EXPECT_EQ(spans("{% for m in messages if m.role == 'user' %}<{{ m.text }}>{% endfor %}"), "0[<a>]2[<>]");
  EXPECT_EQ(spans("{% for t in ['a'] %}{{ t }}{% endfor %}"), "");
  EXPECT_EQ(spans("{% set all %}{% for m in messages %}{{ m.text }}{% endfor %}{% endset %}{{ all }}"), "")
      << "captured text may be written anywhere";
}

TEST_F(JinjaRenderer, MarksGenerationsInTheOutput) {
  const RenderResult rendered = render("a{% generation %}bc{% endgeneration %}{% generation %}{% endgeneration %}d");
  ASSERT_EQ(rendered.generation.size(), 2u);
  EXPECT_EQ(rendered.generation[0].begin, 1u);
  EXPECT_EQ(rendered.generation[0].end, 3u);
  EXPECT_EQ(rendered.generation[1].begin, rendered.generation[1].end);
  EXPECT_TRUE(has(render_error("{% set x %}{% generation %}{% endgeneration %}{% endset %}"), "is not supported"));
}

TEST_F(JinjaRenderer, ALoopHasAScopeForEachRound) {
  EXPECT_EQ(text("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(text("{% for i in [1] %}{% set y = 1 %}{% endfor %}{{ y is defined }}"), "False");
  EXPECT_EQ(text("{% if true %}{% set y = 1 %}{% endif %}{{ y }}"), "1") << "an if has no scope";
  EXPECT_EQ(text("{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"), "3");
}

TEST_F(JinjaRenderer, ALoopVisitsTheValuesThatItsConditionKeeps) {
  EXPECT_EQ(text("{% for i in [1, 2, 3, 4] if i > 2 %}{{ loop.index }}/{{ loop.length }} {% endfor %}"), "1/2 2/2 ");
  EXPECT_EQ(text("{% for i in [1] if i > 2 %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(text("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"), "13");
  EXPECT_EQ(text("{% for i in [1, 2] %}{% for j in [1, 2] %}{% break %}{% endfor %}{{ i }}{% endfor %}"), "12")
      << "break ends the innermost loop";
}

TEST_F(JinjaRenderer, AMacroSeesWhereItWasDefinedAndTakesItsParameters) {
  const std::string macro = "{% set y = 1 %}{% macro m(a, b=a) %}{{ a }}{{ b }}{{ y }}{{ z }}{% endmacro %}";
  EXPECT_EQ(text(macro + "{% for z in [5] %}{{ m(2) }}{% endfor %}"), "221") << "it does not see z where it is called";
  EXPECT_EQ(text(macro + "{{ m(2, b=3) }}"), "231");
  EXPECT_TRUE(has(render_error(macro + "{{ m(1, 2, 3) }}"), "m takes at most 2 arguments"));
  EXPECT_TRUE(has(render_error(macro + "{{ m(1, c=3) }}"), "m has no parameter c"));
  EXPECT_EQ(text("{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}"), "False");
}

TEST_F(JinjaRenderer, ACallBlockGivesItsTextToTheMacro) {
  EXPECT_EQ(text("{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}{{ x }}b{% endcall %}"), "<1b>");
}

TEST_F(JinjaRenderer, OnlyWhatIsNeededIsComputed) {
  EXPECT_EQ(text("{{ 1 or 1 / 0 }}{{ 0 and 1 / 0 }}{{ 2 if true else 1 / 0 }}"), "102");
  EXPECT_EQ(text("{% if true %}a{% elif 1 / 0 %}{% endif %}"), "a");
  EXPECT_EQ(text("{{ 3 < 2 < 1 / 0 }}"), "False") << "a chain ends at the first false comparison";
}

TEST_F(JinjaRenderer, AnErrorHasTheExpressionThatFailed) {
  EXPECT_EQ(render_error("ab{{ 1 + (2 / 0) }}"), "12: a division by zero");
  EXPECT_EQ(render_error("{{ nosuch.x }}"), "9: \"nosuch\" is undefined");
  EXPECT_EQ(render_error("{% set a, b = [1] %}"), "3: 1 value is assigned to 2 names");
  EXPECT_EQ(render_error("{{ {1: 2} }}"), "3: keys of dictionaries must be texts, and this is a whole number");
}

TEST_F(JinjaRenderer, StopsAtItsLimits) {
  options_.limits = {.work = 10'000, .made_bytes = 1000, .depth = 50};
  EXPECT_TRUE(has(render_error("{% for i in '1234567' %}{% for j in '1234567' %}{% for k in '1234567' %}x{% endfor %}"
                               "{% endfor %}{% endfor %}"),
                  "is stopped"));
  EXPECT_NE(render_error("{% for i in range(10) %}{{ 'a' * 200 }}{% endfor %}"), "") << "the output counts too";
  EXPECT_NE(render_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "");
  EXPECT_EQ(text("{{ 'a' * 100 }}").size(), 100u);
}

}  // namespace
}  // namespace meshtrain::testing
