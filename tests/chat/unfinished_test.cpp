#include "runtime/text/chat/unfinished.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "tests/chat/chat_fixtures.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

/// Returns the text after which the last message of a conversation is continued.
std::string unfinished_text(const std::filesystem::path& file, const std::string& tokenizer, const std::string& last) {
  const std::string name = source_folder() + "/tests/tokenizer/fixtures/" + tokenizer;
  const auto loaded = load_tokenizer(name);
  const OrderedJson line = {
      {"messages",
       {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", OrderedJson::parse(last)}}}}};
  return loaded->decode(tokenize_unfinished(ChatTemplate(name, file), *loaded, parse_conversation(line.dump())));
}

// The texts are those of transformers 5.24 with continue_final_message=True.
TEST(UnfinishedMessage, EndsWhereTransformersEndsIt) {
  const std::string header = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(unfinished_text(template_fixture("chatml"), "smollm2", R"(" Sure: ")"),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n Sure: ");
  EXPECT_EQ(unfinished_text(template_fixture("llama3"), "llama3", R"(" Sure:\u00a0 ")"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>" + header + "Sure:")
      << "the template trims";
  EXPECT_EQ(unfinished_text(template_fixture("qwen3"), "qwen", R"("Sure: ")"),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nSure: ");
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja",
             "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
             "{% for piece in m.content %}{{ piece.text }}|{% endfor %}{% endif %};{% endfor %}");
  EXPECT_EQ(unfinished_text(folder.path() / "t.jinja", "smollm2", R"([{"text": "a"}, {"text": "b"}, {"image": 1}])"),
            "q;a|b")
      << "the last text of several";
}

TEST(UnfinishedMessage, HasATextThatTheTemplateWrites) {
  EXPECT_TRUE(
      has(message<InputError>([] { unfinished_text(template_fixture("chatml"), "smollm2", R"([{"image": 1}])"); }),
          "the last message has no text that could be continued"));
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja", "{% for m in messages %}{{ m.content | length }}{% endfor %}");
  EXPECT_TRUE(has(message<InputError>([&] { unfinished_text(folder.path() / "t.jinja", "smollm2", R"("a")"); }),
                  "the template changes the text of the last message"));
}

}  // namespace
}  // namespace meshtrain::testing
