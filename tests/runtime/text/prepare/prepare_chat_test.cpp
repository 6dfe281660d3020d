#include "runtime/text/prepare/prepare_chat.h"

#include <gtest/gtest.h>

#include <fstream>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class PrepareChat : public ::testing::Test {
 protected:
  PrepareChatCounts prepare(const std::string& lines, const std::string& template_text = kPlain,
                            const std::function<void(const PrepareChatCounts&)>& report = {}) {
    write_file(input_, lines);
    write_file(scratch_.path() / "t.jinja", template_text);
    const std::string tokenizer = source_folder() + "/tests/tokenizer/fixtures/smollm2";
    PrepareChatOptions options;
    options.inputs = {input_};
    options.output = scratch_.path() / "a.bin";
    options.sequence_length = 255;
    options.loss = LossOn::All;
    options.skips_bad = true;
    options.tokenizer = tokenizer;
    return prepare_chat(ChatTemplate(tokenizer, scratch_.path() / "t.jinja"), *load_tokenizer(tokenizer), options,
                        report);
  }

  static constexpr const char* kPlain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  static constexpr const char* kLine = R"({"messages": [{"role": "user", "content": "a"}]})";
  ScratchFolder scratch_;
  fs::path input_ = scratch_.path() / "a.jsonl";
};

TEST_F(PrepareChat, RefusesAnInputThatChanges) {
  const std::string error = message<InputError>([&] {
    prepare(std::string(kLine) + "\n", kPlain,
            [&](const PrepareChatCounts&) { std::ofstream(input_, std::ios::app) << kLine << "\n"; });
  });
  EXPECT_TRUE(has(error, input_.string() + " changed while it was read: prepare ")) << error;
  EXPECT_FALSE(fs::exists(scratch_.path() / "a.bin"));
}

TEST_F(PrepareChat, CountsEachReason) {
  const PrepareChatCounts counts = prepare(std::string(kLine) + "\n{\n[1\n{\"messages\": [1]}\n" +
                                           "{\"messages\": [{\"role\": \"a\"}, 2]}\n{\"messages\": []}\n");
  EXPECT_EQ(counts.bad, 5);
  EXPECT_EQ(counts.bad_reasons, (std::map<std::string, int64_t>{{"not valid JSON", 2},
                                                                {"messages[N] is not an object with a \"role\"", 2},
                                                                {"the list of messages is empty", 1}}));
}

TEST_F(PrepareChat, CountsToolsThatNothingReads) {
  const std::string lines = std::string(kLine) + "\n" +
                            R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}]})" + "\n" +
                            R"({"messages": [{"role": "user", "content": "a"}], "tools": []})" + "\n";
  PrepareChatCounts counts = prepare(lines);
  EXPECT_EQ(counts.with_unread_tools, 1);
  counts = prepare(lines, std::string("{% if tools %}{{ tools }}{% endif %}") + kPlain);
  EXPECT_EQ(counts.with_unread_tools, 0);
}

TEST_F(PrepareChat, CountsMessagesOfUnusualRoles) {
  const std::string good = R"({"role": "assistant", "content": "b"})";
  std::string usual;
  for (const char* role : {"system", "developer", "user", "assistant", "tool", "function", "ipython"}) {
    usual += std::string(usual.empty() ? "" : ", ") + R"({"role": ")" + role + R"(", "content": "a"})";
  }
  const PrepareChatCounts counts =
      prepare("{\"messages\": [" + usual + "]}\n" + R"({"messages": [{"role": "assistent", "content": "a"}, )" + good +
              R"(, {"role": "bot", "content": "a"}]})" + "\n" + R"({"messages": [{"role": "x", "content": "a"}, )" +
              good + "]}\n");
  EXPECT_EQ(counts.conversations, 3);
  EXPECT_EQ(counts.unusual_roles.count, 3);
  EXPECT_EQ(counts.unusual_roles.first, input_.string() + ":2: assistent");
}

TEST_F(PrepareChat, CountsConversationsWhosePartsArePrinted) {
  const std::string parts = R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "it's"}]}]})";
  const std::string lines = std::string(kLine) + "\n" + parts + "\n" + parts + "\n";
  PrepareChatCounts counts = prepare(lines);
  EXPECT_EQ(counts.printed_parts.count, 2);
  EXPECT_EQ(counts.printed_parts.first, input_.string() + ":2");
  counts =
      prepare(lines,
              "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
              "{{ p.text }}{% endfor %}{% endif %}{% endfor %}");
  EXPECT_EQ(counts.printed_parts.count, 0) << "a template that reads parts";
  EXPECT_EQ(counts.lost_parts.count, 0);
  counts = prepare(lines,
                   "{% for m in messages %}{{ m.role }}{% if m.content is string %}{{ m.content }}{% endif %}"
                   "{% endfor %}");
  EXPECT_EQ(counts.printed_parts.count, 0);
  EXPECT_EQ(counts.lost_parts.count, 2) << "a template that reads texts alone";
  EXPECT_EQ(counts.lost_parts.first, input_.string() + ":2");
}

}  // namespace
}  // namespace meshtrain::testing
