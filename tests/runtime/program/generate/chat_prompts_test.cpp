#include "runtime/program/generate/chat_prompts.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kQuestion = R"({"role": "user", "content": "q"})";
constexpr const char* kAnswer = R"({"role": "assistant", "content": "a"})";

class ChatPrompts : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_.path() / "t.jinja",
               "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
               "{% if tools %}tools;{% endif %}{% if add_generation_prompt %}a:{% endif %}");
  }

  std::vector<Prompt> read(const std::string& name, const std::string& text, const ChatPromptOptions& options = {}) {
    file_ = folder_.path() / name;
    write_file(file_, text);
    return read_chat_prompts(file_, options);
  }

  /// Returns the texts that the template makes of the prompts of a file.
  std::vector<std::string> texts(const std::string& name, const std::string& text,
                                 const ChatPromptOptions& options = {}) {
    const auto bytes = load_tokenizer("bytes");
    const ChatTemplate chat("bytes", folder_.path() / "t.jinja");
    std::vector<std::string> texts;
    for (const Prompt& prompt : read(name, text, options)) {
      texts.push_back(bytes->decode(render_prompt(prompt, chat, *bytes, options).tokens));
    }
    return texts;
  }

  std::string complaint(const std::string& name, const std::string& text, const ChatPromptOptions& options = {}) {
    return message<InputError>([&] { texts(name, text, options); });
  }

  std::string messages(const std::vector<std::string>& each) const {
    std::string list;
    for (const std::string& one : each) list += (list.empty() ? "" : ", ") + one;
    return "[" + list + "]";
  }

  ScratchFolder folder_;
  fs::path file_;
};

using Texts = std::vector<std::string>;

TEST_F(ChatPrompts, AreConversationsOfSeveralTurns) {
  const std::string list = messages({kQuestion, kAnswer, kQuestion});
  const std::string lines = R"({"messages": )" + list + "}\n\n" + list + "\n" + R"({"prompt": )" + list +
                            R"(, "completion": "left out"})" + "\n" +
                            R"({"conversations": [{"from": "human", "value": "h"}]})" + "\n" + R"({"messages": [)" +
                            kQuestion + R"(, {"role": "tool", "content": "4"}], "tools": [1]})" + "\n" +
                            R"({"prompt": "text", "id": 7})" + "\n\"alone\"\n" + R"({"tokens": [65, 66]})";
  EXPECT_EQ(texts("a.jsonl", lines), (Texts{"u:q;a:a;u:q;a:", "u:q;a:a;u:q;a:", "u:q;a:a;u:q;a:", "u:h;a:",
                                            "u:q;t:4;tools;a:", "u:text;a:", "u:alone;a:", "AB"}));
  const std::vector<Prompt> prompts = read("a.jsonl", lines);
  EXPECT_EQ(prompts[2].key, "prompt");
  EXPECT_EQ(prompts[5].json, "\"text\"");
  EXPECT_EQ(prompts[1].location, file_.string() + ":3");
}

TEST_F(ChatPrompts, OfAFileOfPlainTextAreItsLines) {
  EXPECT_EQ(texts("a.txt", "one\n{\"messages\": 1}\n"), (Texts{"u:one;a:", "u:{\"messages\": 1};a:"}));
}

TEST_F(ChatPrompts, AreReadFromACompressedFile) {
  write_file(folder_.path() / "a.jsonl", R"({"messages": )" + messages({kQuestion}) + "}\n\"b\"\n");
  ASSERT_EQ(std::system(("gzip " + (folder_.path() / "a.jsonl").string()).c_str()), 0);
  const std::vector<Prompt> prompts = read_chat_prompts(folder_.path() / "a.jsonl.gz", {});
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_TRUE(prompts[0].conversation);
  EXPECT_EQ(prompts[1].text, "b");
}

TEST_F(ChatPrompts, OfOneJsonValueAreItsElements) {
  const std::string one = R"({"messages": )" + messages({kQuestion}) + "}";
  EXPECT_EQ(texts("a.json", "\n" + one + "\n"), (Texts{"u:q;a:"}));
  EXPECT_EQ(texts("a.json", messages({kQuestion, kAnswer, kQuestion})), (Texts{"u:q;a:a;u:q;a:"}));
  EXPECT_EQ(texts("a.JSON", "[\n  \"x, ] \\\" y\" ,\n" + one + ",\n [" + kQuestion + "]\n]\n"),
            (Texts{"u:x, ] \" y;a:", "u:q;a:", "u:q;a:"}));
  EXPECT_EQ(texts("a.json", " [ ] "), Texts());
  EXPECT_EQ(complaint("a.json", "[\n" + one + ",\n{\"x\": 1}]"),
            file_.string() + ":3: neither \"messages\" nor \"prompt\": its keys are x");
  EXPECT_EQ(complaint("a.json", "[" + one + ",\n" + one),
            file_.string() +
                ":2: not valid JSON; if each of its lines is a JSON object, "
                "call the file *.jsonl");
}

TEST_F(ChatPrompts, OfJsonLinesAreItsLinesWhateverTheirName) {
  const std::string one = R"({"messages": )" + messages({kQuestion}) + "}", two = one + "\n" + one + "\n";
  EXPECT_EQ(texts("a.json", two), (Texts{"u:q;a:", "u:q;a:"}));
  EXPECT_EQ(texts("a", two), (Texts{"u:q;a:", "u:q;a:"}));
  ASSERT_EQ(std::system(
                ("gzip " + file_.string() + " && mv " + file_.string() + ".gz " + file_.string() + ".json.gz").c_str()),
            0);
  EXPECT_EQ(read_chat_prompts(file_.string() + ".json.gz", {}).size(), 2U);
  write_file(folder_.path() / "b.json", "{\"prompt\": \"p\"}\n{\"prompt\": \"q\"}\n");
  ASSERT_EQ(read_prompts(folder_.path() / "b.json").size(), 2U);
  EXPECT_EQ(read_prompts(folder_.path() / "b.json")[1].text, "q");
  write_file(folder_.path() / "c", "{ a brace\nanother\n");
  EXPECT_EQ(read_prompts(folder_.path() / "c")[0].text, "{ a brace");
}

TEST_F(ChatPrompts, ThatAreAnsweredAlreadyAreRefusedOrContinued) {
  const std::string answered = R"({"messages": )" + messages({kQuestion, kAnswer}) + "}";
  const std::string open = R"({"messages": )" + messages({kQuestion}) + "}";
  const std::string error = complaint("a.jsonl", open + "\n" + answered);
  EXPECT_EQ(error, file_.string() +
                       ":2: the conversation ends with an assistant message, so there is nothing to answer: remove the "
                       "last message (jq -c '.messages |= .[:-1]' does), or give --continue-final-message to have that "
                       "message continued");
  EXPECT_EQ(texts("a.jsonl", open + "\n" + answered, {.continues_assistant = true}), (Texts{"u:q;a:", "u:q;a:a"}));
}

TEST_F(ChatPrompts, StandAfterTheSystem) {
  const std::string system = "S", own = R"({"messages": [{"role": "system", "content": "own"}, )";
  EXPECT_EQ(texts("a.jsonl", R"({"messages": )" + messages({kQuestion}) + "}", {.system = &system}),
            (Texts{"s:S;u:q;a:"}));
  EXPECT_EQ(texts("a.jsonl", own + kQuestion + "]}"), (Texts{"s:own;u:q;a:"}));
  EXPECT_EQ(complaint("a.jsonl", own + kQuestion + "]}", {.system = &system}),
            file_.string() + ":1: the conversation already has a system message: remove it, or leave --system out");
}

TEST_F(ChatPrompts, ThatTheTemplateRefusesAreNamedByTheirLines) {
  write_file(folder_.path() / "t.jinja", "{{ raise_exception('no') }}");
  const std::string error = complaint("a.jsonl", "\n{\"messages\": " + messages({kQuestion}) + "}");
  EXPECT_TRUE(has(error, file_.string() + ":2: ") && has(error, "the template refuses this: no")) << error;
}

TEST_F(ChatPrompts, NeedAChat) {
  file_ = folder_.path() / "a.jsonl";
  for (const std::string& line : Texts{R"({"messages": )" + messages({kQuestion}) + "}", R"({"conversations": []})",
                                       R"({"prompt": )" + messages({kQuestion}) + "}"}) {
    write_file(file_, line);
    EXPECT_EQ(message<InputError>([&] { read_prompts(file_); }),
              file_.string() + ":1: the object is a conversation: give --chat");
  }
  write_file(file_, R"({"prompt": "text", "messages": []})");
  EXPECT_EQ(read_prompts(file_)[0].text, "text");
}

}  // namespace
}  // namespace meshtrain::testing
