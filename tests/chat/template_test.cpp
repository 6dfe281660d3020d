#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>

#include "runtime/text/chat/chat_template.h"
#include "runtime/text/jinja/template.h"
#include "tests/chat/chat_fixtures.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

using jinja::RenderOptions;
using jinja::Template;
using jinja::TemplateError;
using jinja::Value;

/// Returns the options with the time that generate.py has, in the night of the fourth of March 2025.
RenderOptions at_fixed_time() {
  RenderOptions options;
  std::tm now{};
  now.tm_year = 125, now.tm_mon = 2, now.tm_mday = 4, now.tm_hour = 5, now.tm_min = 6, now.tm_sec = 7;
  options.now = now;
  return options;
}

std::string rendered(const std::string& source) {
  return Template("t", source).render(at_fixed_time()).text;
}

std::string error_of(const std::string& source) {
  return message<TemplateError>([&] { rendered(source); });
}

/// Returns the variables that transformers renders a conversation with.
RenderOptions options_of(const OrderedJson& conversation) {
  OrderedJson all = {{"bos_token", "<s>"}, {"eos_token", "</s>"},  {"unk_token", "<unk>"},
                     {"tools", nullptr},   {"documents", nullptr}, {"add_generation_prompt", false}};
  all.update(conversation);
  RenderOptions options = at_fixed_time();
  for (const auto& [key, value] : all.items()) options.variables.emplace_back(key, jinja::from_json(value));
  return options;
}

TEST(ChatTemplates, WriteTheTextsOfTransformers) {
  const OrderedJson &expected = chat_json("expected.json")["texts"], &conversations = chat_json("conversations.json");
  ASSERT_GE(expected.size(), 14U);
  ASSERT_EQ(conversations.size(), 40U);
  for (const auto& [name, texts] : expected.items()) {
    const Template chat(name, content(template_fixture(name)));
    std::string before;
    int num_texts = 0;
    for (size_t i = 0; i < conversations.size(); ++i) {
      const RenderOptions options = options_of(conversations[i]);
      if (texts[i].is_null()) {
        EXPECT_THROW(chat.render(options), TemplateError) << name << ", conversation " << i;
        continue;
      }
      const std::string text = before.substr(0, texts[i][0].get<size_t>()) + texts[i][1].get<std::string>();
      before = text;
      ++num_texts;
      try {
        EXPECT_EQ(chat.render(options).text, text) << name << ", conversation " << i;
      } catch (const TemplateError& error) {
        ADD_FAILURE() << name << ", conversation " << i << ": " << error.what();
      }
    }
    EXPECT_GE(num_texts, 19) << name;
  }
}

TEST(ChatTemplates, ComputeAsJinjaDoes) {
  int num_errors = 0;
  for (const OrderedJson& snippet : chat_json("expected.json")["snippets"]) {
    const auto source = snippet[0].get<std::string>();
    if (snippet[1].is_null()) {
      EXPECT_FALSE(error_of(source).empty()) << source;
      ++num_errors;
    } else {
      EXPECT_EQ(error_of(source), "") << source;
      EXPECT_EQ(rendered(source), snippet[1].get<std::string>()) << source;
    }
  }
  EXPECT_GE(num_errors, 15);
}

TEST(ChatTemplates, ErrorsNameLineAndColumn) {
  const std::map<std::string, std::string> errors = {
      {"a\nb {{ x.y }}", "t:2:7: \"x\" is undefined"},
      {"{% if a %}\n{{ 1 }}", "t:1:4: the if that begins here has no end"},
      {"\n  {{ raise_exception('not ' ~ 'this') }}", "t:2:21: the template refuses this: not this"},
      {"{{ 'é' }}{{ 1 + 'a' }}", "t:1:15: a whole number + a text has no meaning"},
      {"{{ 'a'|nosuch }}", "t:1:7: there is no filter \"nosuch\""},
      {"{{ 1 is nosuch }}", "t:1:6: there is no test \"nosuch\""},
      {"{{ '1_0'|int }}", "t:1:9: a number must have ASCII digits and no underscores"},
      {"{{ [1 }}", "t:1:7: this } closes nothing"},
      {"{{ (1 + ) }}", "t:1:9: an expression is expected, but here is \")\""},
      {"{% include 'x' %}", "t:1:4: {% include %} is not supported in chat templates"},
      {"{{ [].append(1) }}", "t:1:13: append() changes a list, which a template may not do"},
      {"{{ 9223372036854775807 + 1 }}", "t:1:24: a whole number has more than 64 bits"},
      {"{{ 'É'.lower() }}", "t:1:13: changing the case of letters beyond ASCII is not supported"},
      {"{% break %}", "t:1:4: break is outside a loop"},
      {"{# a", "t:1:1: the comment that begins here has no end: #}"},
      {"{{ m(1, x=2) }}{% macro m(a) %}{% endmacro %}", "t:1:5: \"m\" is undefined, which is called here"},
  };
  for (const auto& [source, expected] : errors) EXPECT_EQ(error_of(source), expected) << source;
}

TEST(ChatTemplates, RefuseWhatTheyDoNotHave) {
  EXPECT_TRUE(has(error_of("{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}"),
                  "{% generation %} inside a macro or a block that is captured is not supported"));
  for (const std::string filter : {"groupby", "batch", "slice", "sum", "min", "max", "round", "format", "attr"}) {
    EXPECT_TRUE(has(error_of("{{ [1]|" + filter + "(1) }}"), "there is no filter \"" + filter + "\""));
  }
  for (const std::string name : {"upper", "filter", "test", "escaped"}) {
    EXPECT_TRUE(has(error_of("{{ 'a' is " + name + " }}"), "there is no test \"" + name + "\""));
  }
  for (const std::string method : {"format", "partition", "isalpha"}) {
    EXPECT_TRUE(has(error_of("{{ 'a'." + method + "() }}"), "a text has no \"" + method + "\", which is called here"));
  }
  for (const std::string name : {"cycle", "changed"}) {
    EXPECT_TRUE(has(error_of("{% for i in [1] %}{{ loop." + name + "(i) }}{% endfor %}"),
                    "a loop has no \"" + name + "\", which is called here"));
  }
  EXPECT_TRUE(has(error_of("{{ cycler('a', 'b') }}"), "\"cycler\" is undefined, which is called here"));
  EXPECT_TRUE(has(error_of("{% raw %}{{ %}{% endraw %}"), "{% raw %} is not supported in chat templates"));
  EXPECT_TRUE(has(error_of("{% with a = 1 %}{% endwith %}"), "{% with %} is not supported in chat templates"));
  EXPECT_TRUE(has(error_of("{% for i in [1] recursive %}{% endfor %}"), "recursive loops are not supported"));
  EXPECT_TRUE(has(error_of("{{ '%s' % 'a' }}"), "a text % a text has no meaning"));
  EXPECT_TRUE(has(error_of("{{ 2 ** 3 }}"), "but here is \"**\""));
  EXPECT_TRUE(has(error_of("{{ '7'|int(base=8) }}"), "there is no argument base"));
  EXPECT_TRUE(has(error_of("{{ 1_000 }}"), "a number is followed by a letter or an underscore"));
  EXPECT_TRUE(has(error_of("{{ '\\101' }}"), "octal escapes are not supported"));
  EXPECT_TRUE(has(error_of("{{ '99999999999999999999'|int }}"), "a whole number has more than 64 bits"));
}

/// Returns `text`, `count` times.
std::string times(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(ChatTemplates, CannotHangOrExhaustMemory) {
  const std::string loops = times("{% for i in range(100000) %}", 4) + "x" + times("{% endfor %}", 4);
  const std::map<std::string, std::string> hostile = {
      {loops, "is stopped"},
      {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "is stopped"},
      {"{{ 'a' * 10000000000 }}", "is stopped"},
      {"{{ [1] * 9223372036854775807 }}", "is stopped"},
      {"{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", "is stopped"},
      {"{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x | replace('', n.x) %}{% endfor %}",
       "is stopped"},
      {"{{ range(1000000000) }}", "a range has more than"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels deep"},
      {"{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}", "levels deep"},
      {"{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}", "is stopped"},
      {"{% set s = 'a' * 3000000 %}{{ s.rsplit('a' * 1000000 + 'b', 1) }}", "is stopped"},
      {"{{ " + times("(", 3000) + times(")", 3000) + " }}", "nested too deeply"},
      {"{{ " + times("-", 3000) + "1 }}", "nested too deeply"},
      {"{{ " + times("[", 3000) + times("]", 3000) + " }}", "nested too deeply"},
      {"{{ 1" + times(" + 1", 3000) + " }}", "nested too deeply"},
      {"{{ x" + times(".x", 3000) + " }}", "nested too deeply"},
      {times("{% if 1 %}", 3000), "nested too deeply"},
      {"{{ 'x'" + times("|e", 3000) + " }}", "nested too deeply"},
      {"{{ [[1]]|tojson(indent=100000) }}", "too wide"},
  };
  for (const auto& [source, expected] : hostile) {
    const auto began = std::chrono::steady_clock::now();
    const std::string error = error_of(source);
    EXPECT_TRUE(has(error, expected)) << source.substr(0, 100) << ": " << error;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60)) << source.substr(0, 100);
  }
}

TEST(ChatTemplates, DamagedOnesAreErrors) {
  std::mt19937_64 random(7);
  RenderOptions options = options_of(chat_json("conversations.json")[25]);
  options.limits.work = 2'000'000;
  int num_rendered = 0, num_refused = 0;
  for (const auto& [name, texts] : chat_json("expected.json")["texts"].items()) {
    const std::string source = content(template_fixture(name));
    for (int i = 0; i < 150; ++i) {
      try {
        Template("t", damaged(source, random)).render(options);
        ++num_rendered;
      } catch (const TemplateError& error) {
        EXPECT_EQ(std::string(error.what()).rfind("t:", 0), 0U) << error.what();
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_rendered, 10);
  EXPECT_GT(num_refused, 1000);
}

// Macros and namespaces may refer to themselves; the sanitizer's leak check looks at this test.
TEST(ChatTemplates, ForgetCycles) {
  EXPECT_EQ(rendered("{% macro m() %}a{% endmacro %}{% set n = namespace() %}{% set n.n = n %}{% set n.m = m %}"
                     "{% for i in [1] %}{% macro k() %}{{ i }}{% endmacro %}{% set n.l = loop %}{{ k() }}{% endfor %}"),
            "1");
}

// transformers 5 builds LlamaTokenizer anew from the vocabulary of tokenizer.json, with a normalizer of its own.
TEST(ChatTemplates, SayWhereTheClassOfTransformersGivesOtherIds) {
  const ScratchFolder folder;
  const auto warning = [&](const std::string& config, const std::string& normalizer) {
    write_file(folder.path() / "tokenizer_config.json", config);
    write_file(folder.path() / "tokenizer.json", "{\"normalizer\": " + normalizer + "}");
    write_file(folder.path() / "chat_template.jinja", "x");
    return ChatTemplate(folder.path()).warning();
  };
  const std::string prepends = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]})";
  for (const std::string name : {"LlamaTokenizer", "LlamaTokenizerFast"}) {
    EXPECT_EQ(warning("{\"tokenizer_class\": \"" + name + "\"}", prepends),
              "ids are those of " + (folder.path() / "tokenizer.json").string() +
                  ", whose normalizer begins each text after a special token with a space; transformers 5 leaves it "
                  "out, as tokenizer_config.json names the class " +
                  name);
    EXPECT_EQ(warning("{\"tokenizer_class\": \"" + name + "\", \"legacy\": true}", prepends), "");
    EXPECT_EQ(warning("{\"tokenizer_class\": \"" + name + "\"}", "null"), "") << "a newer file";
  }
  EXPECT_EQ(warning("{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}", prepends), "");
  EXPECT_EQ(warning("{}", prepends), "");
}

}  // namespace
}  // namespace meshtrain::testing
