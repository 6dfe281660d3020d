#include "runtime/text/chat/chat_tokens.h"

#include <gtest/gtest.h>

#include <map>

#include "mesh/base/error.h"
#include "tests/chat/chat_fixtures.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

std::string tokenizer_fixture(const std::string& name) {
  return source_folder() + "/tests/tokenizer/fixtures/" + name;
}

/// FNV-1a over ids as 32-bit numbers, as generate.py has it.
std::string checksum_of(const std::vector<int64_t>& ids) {
  uint64_t value = 0xCBF29CE484222325U;
  for (const int64_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8)
      value = (value ^ (static_cast<uint64_t>(id) >> shift & 255)) * 0x100000001B3U;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

OrderedJson runs_of(const std::vector<uint8_t>& counted) {
  OrderedJson runs = OrderedJson::array();
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i] == 0) continue;
    if (i > 0 && counted[i - 1] != 0) {
      runs.back()[1] = i + 1;
    } else {
      runs.push_back({i, i + 1});
    }
  }
  return runs;
}

/// Returns a line of JSON of the arguments of apply_chat_template, without the generation prompt.
std::string line_of(OrderedJson arguments) {
  arguments.erase("add_generation_prompt");
  OrderedJson line = {{"messages", arguments["messages"]}};
  if (arguments.contains("tools")) line["tools"] = arguments["tools"];
  arguments.erase("messages");
  arguments.erase("tools");
  if (!arguments.empty()) line["chat_template_kwargs"] = arguments;
  return line.dump();
}

TEST(ChatTokens, AreThoseOfTransformers) {
  const OrderedJson &expected = chat_json("expected.json"), &conversations = chat_json("conversations.json");
  for (const auto& [name, rows] : expected["tokens"].items()) {
    const auto folder = tokenizer_fixture(rows["tokenizer"]);
    const auto tokenizer = load_tokenizer(folder);
    const ChatTemplate chat(folder, template_fixture(name));
    size_t num_spelled = 0, num_masks = 0;
    for (size_t i = 0; i < conversations.size(); ++i) {
      const std::string where = name + ", conversation " + std::to_string(i);
      const Conversation conversation = parse_conversation(line_of(conversations[i]));
      const OrderedJson& row = rows["conversations"][i];
      if (row.is_null()) {
        EXPECT_THROW(tokenize_chat(chat, *tokenizer, conversation, LossOn::All), jinja::TemplateError) << where;
        continue;
      }
      const ChatTokens all = tokenize_chat(chat, *tokenizer, conversation, LossOn::All);
      EXPECT_EQ(all.ids.size(), row[0].get<size_t>()) << where;
      EXPECT_EQ(checksum_of(all.ids), row[1].get<std::string>()) << where;
      EXPECT_EQ(all.counted, std::vector<uint8_t>(all.ids.size(), 1)) << where;
      const OrderedJson& spelled = expected["spelled"][name];
      if (num_spelled < spelled.size()) {
        EXPECT_EQ(all.ids, spelled[num_spelled++].get<std::vector<int64_t>>()) << where;
      }
      if (row[2].is_null()) continue;
      ++num_masks;
      const ChatTokens turns = tokenize_chat(chat, *tokenizer, conversation, LossOn::Assistant);
      EXPECT_EQ(turns.ids, all.ids) << where;
      EXPECT_EQ(runs_of(turns.counted), row[2]) << where;
    }
    EXPECT_GE(num_masks, 15U) << name;
  }
}

/// Returns the text of the tokens that count, with `|` between runs.
std::string counted_text(const std::string& name, const std::string& folder, const std::string& line) {
  SCOPED_TRACE(name);
  const auto tokenizer = load_tokenizer(tokenizer_fixture(folder));
  const ChatTemplate chat(tokenizer_fixture(folder), template_fixture(name));
  const ChatTokens tokens = tokenize_chat(chat, *tokenizer, parse_conversation(line), LossOn::Assistant);
  std::string text;
  for (const OrderedJson& run : runs_of(tokens.counted)) {
    const auto begin = tokens.ids.begin() + run[0].get<ptrdiff_t>(), end = tokens.ids.begin() + run[1].get<ptrdiff_t>();
    text += (text.empty() ? "" : "|") + tokenizer->decode(std::vector<int64_t>(begin, end));
  }
  return text;
}

constexpr const char* kTwoTurns =
    R"({"messages": [{"role": "user", "content": "q one"}, {"role": "assistant", "content": "a one"},
        {"role": "user", "content": "q two"}, {"role": "assistant", "content": "a two"}]})";
constexpr const char* kSystem =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q one"},
        {"role": "assistant", "content": "a one"}, {"role": "user", "content": "q two"},
        {"role": "assistant", "content": "a two"}]})";

TEST(ChatTokens, OfTemplatesThatRenderTheLastTurnInAnotherWay) {
  EXPECT_EQ(counted_text("qwen3", "qwen", kTwoTurns), "a one<|im_end|>\n|<think>\n\n</think>\n\na two<|im_end|>\n");
  EXPECT_EQ(counted_text("phi3.5", "smollm2", kTwoTurns), "a one<|end|>\n|a two<|end|>\n");
  EXPECT_EQ(counted_text("mistral_v3", "gpt2", kSystem), "a one<|endoftext|>|a two<|endoftext|>");
}

// The mark of a space that an answer begins with, alone a token here, decodes to nothing.
TEST(ChatTokens, BeginWithTheMarkOfASpace) {
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja",
             "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
             "{% generation %}{{ ' ' + m.content + ' ' }}{% endgeneration %}{% endif %}{% endfor %}");
  const fs::path model = tokenizer_fixture("llama2");
  const auto tokenizer = load_tokenizer(model);
  const ChatTemplate chat(model, folder.path() / "t.jinja");
  const Conversation conversation = parse_conversation(
      R"({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "\u03a9"}]})");
  const ChatTokens tokens = tokenize_chat(chat, *tokenizer, conversation, LossOn::Assistant);
  const std::vector<int64_t> prompt = tokenizer->ids("[INST] one [/INST]", /*add_special=*/false);
  ASSERT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.ids.begin())) << "the prompt ends where a token does";
  ASSERT_GT(tokens.ids.size(), prompt.size() + 1);
  EXPECT_EQ(tokenizer->decode({tokens.ids[prompt.size()]}), "");
  for (size_t i = 0; i < tokens.ids.size(); ++i) EXPECT_EQ(tokens.counted[i], i >= prompt.size()) << "token " << i;
}

TEST(ChatTokens, OfACompletionAlone) {
  const char* const line =
      R"({"prompt": [{"role": "user", "content": "q one"}, {"role": "assistant", "content": "a one"},
          {"role": "user", "content": "q two"}], "completion": [{"role": "assistant", "content": "a two"}]})";
  for (const char* name : {"chatml", "chatml_generation", "qwen3"}) {
    const std::string text = counted_text(name, "qwen", line);
    EXPECT_TRUE(has(text, "a two<|im_end|>") && !has(text, "one") && !has(text, "q two")) << name << ": " << text;
  }
  EXPECT_EQ(counted_text("chatml", "qwen", R"({"prompt": "q", "completion": "a"})"), "a<|im_end|>\n");
}

// The keys of OpenAI, axolotl and ms-swift; the text stays.
TEST(ChatTokens, LeaveOutMessagesWithoutAWeight) {
  const auto line = [](const std::string& first, const std::string& second) {
    return R"({"messages": [{"role": "user", "content": "q one"}, {"role": "assistant", "content": "a one")" + first +
           R"(}, {"role": "user", "content": "q two"}, {"role": "assistant", "content": "a two")" + second + "}]}";
  };
  const std::map<std::string, std::string> ends = {
      {"chatml", "<|im_end|>\n"}, {"chatml_generation", "<|im_end|>"}, {"qwen3", "<|im_end|>\n"}};
  for (const auto& [name, end] : ends) {
    for (const char* key : {R"(, "weight": 0)", R"(, "weight": 0.0)", R"(, "weight": false)", R"(, "train": false)",
                            R"(, "loss": false)"}) {
      EXPECT_EQ(counted_text(name, "qwen", line("", key)), "a one" + end) << name << key;
    }
    EXPECT_FALSE(has(counted_text(name, "qwen", line(R"(, "weight": 0)", R"(, "weight": 1)")), "one")) << name;
    const std::string all = counted_text(name, "qwen", line("", ""));
    EXPECT_EQ(counted_text(name, "qwen", line(R"(, "weight": 1)", R"(, "train": true, "loss": 0.5)")), all) << name;
    EXPECT_EQ(counted_text(name, "qwen", line(R"(, "weight": 0)", R"(, "weight": 0)")), "") << name;
  }
  EXPECT_EQ(counted_text("chatml", "qwen",
                         R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a one",
                             "weight": 0}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a two"}]})"),
            "a two<|im_end|>\n");
  EXPECT_EQ(counted_text("chatml", "qwen",
                         R"({"prompt": "q", "completion": [{"role": "assistant", "content": "a", "weight": 0},
                             {"role": "assistant", "content": "b"}]})"),
            "b<|im_end|>\n");
}

TEST(ChatTokens, OfHalfASurrogatePairHaveTheReplacement) {
  EXPECT_EQ(counted_text("chatml", "qwen", R"({"prompt": "q", "completion": "a\ud83d"})"), "a\uFFFD<|im_end|>\n");
}

TEST(ChatTokens, RefuseWeightsThatTheTemplateCannotTellApart) {
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja",
             "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ messages[1].content }}");
  const ChatTemplate chat(tokenizer_fixture("qwen"), folder.path() / "t.jinja");
  const auto tokenizer = load_tokenizer(tokenizer_fixture("qwen"));
  const Conversation conversation =
      parse_conversation(R"([{"role": "assistant", "content": "a", "weight": 0}, {"role": "user", "content": "q"}])");
  const std::string error =
      message<InputError>([&] { tokenize_chat(chat, *tokenizer, conversation, LossOn::Assistant); });
  EXPECT_TRUE(has(error, "a message has the weight 0, and the template does not tell which message")) << error;
}

// Transformers' mask of such a conversation has the turns that the template writes.
TEST(ChatTokens, LeaveOutMessagesThatTheTemplateDoesNotWrite) {
  constexpr const char* kCall = R"({"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]})";
  constexpr const char* kRest = R"({"role": "tool", "content": "4"}, {"role": "assistant", "content": "four"})";
  const std::string asked = R"({"messages": [{"role": "user", "content": "2+2"}, )";
  const std::map<std::string, std::pair<std::string, size_t>> wanted = {
      {asked + kCall + ", " + kRest + "]}", {"four;", 1}},
      {asked + kCall + ", " + kCall + ", " + kRest + ", " + kCall + "]}", {"four;", 3}},
      {asked + kRest + "]}", {"four;", 0}},
      {asked + kCall + "]}", {"", 1}},
      {R"({"messages": [)" + std::string(kCall) + "]}", {"", 1}},
      {R"({"prompt": [{"role": "user", "content": "2+2"}, )" + std::string(kCall) +
           R"(, {"role": "tool", "content": "4"}], "completion": "four"})",
       {"four;", 0}},
  };
  const ScratchFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  for (const bool marks : {false, true}) {
    const std::string body = "{{ m.content }};";
    write_file(folder.path() / "t.jinja", "{% for m in messages %}{% if m.content %}{{ m.role[0] }}:" +
                                              (marks ? "{% if m.role == 'assistant' %}{% generation %}" + body +
                                                           "{% endgeneration %}{% else %}" + body + "{% endif %}"
                                                     : body) +
                                              "{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}");
    const ChatTemplate chat("bytes", folder.path() / "t.jinja");
    for (const auto& [line, expected] : wanted) {
      const ChatTokens tokens = tokenize_chat(chat, *tokenizer, parse_conversation(line), LossOn::Assistant);
      std::vector<int64_t> counted;
      for (size_t i = 0; i < tokens.ids.size(); ++i) {
        if (tokens.counted[i] != 0) counted.push_back(tokens.ids[i]);
      }
      EXPECT_EQ(tokenizer->decode(counted), expected.first) << line;
      EXPECT_EQ(tokens.num_unwritten, expected.second) << line;
    }
  }
}

// A message with a text is looked for although the template leaves it out.
TEST(ChatTokens, RefuseATextThatTheTemplateDoesNotWrite) {
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja",
             "{% for m in messages %}{% if m.role == 'user' %}u:{{ m.content }};{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}a:{% endif %}");
  const auto tokenizer = load_tokenizer("bytes");
  const ChatTemplate chat("bytes", folder.path() / "t.jinja");
  EXPECT_TRUE(has(
      message<InputError>([&] { tokenize_chat(chat, *tokenizer, parse_conversation(kTwoTurns), LossOn::Assistant); }),
      "the assistant's turns cannot be told apart"));
}

TEST(ChatTokens, OfAConversationThatTheAssistantBegins) {
  constexpr const char* kBegun =
      R"({"messages": [{"role": "assistant", "content": "Hi, I am."}, {"role": "user", "content": "q"},
          {"role": "assistant", "content": "a"}]})";
  constexpr const char* kAlone = R"({"messages": [{"role": "assistant", "content": "Hi, I am."}]})";
  for (const auto& [name, folder] : {std::pair("chatml", "qwen"), {"qwen2.5", "qwen"}, {"smollm2", "smollm2"}}) {
    EXPECT_EQ(counted_text(name, folder, kBegun), "Hi, I am.<|im_end|>\n|a<|im_end|>\n") << name;
    EXPECT_EQ(counted_text(name, folder, kAlone), "Hi, I am.<|im_end|>\n") << name;
  }
  EXPECT_EQ(counted_text("qwen3", "qwen", kBegun), "Hi, I am.<|im_end|>\n|<think>\n\n</think>\n\na<|im_end|>\n");
  EXPECT_EQ(counted_text("qwen3", "qwen", kAlone), "Hi, I am.<|im_end|>\n");
  EXPECT_EQ(counted_text("phi3.5", "smollm2", kBegun), "Hi, I am.<|end|>\n|a<|end|>\n");
  EXPECT_EQ(counted_text("llama3", "llama3", kBegun), "Hi, I am.<|eot_id|>|a<|eot_id|>");
  EXPECT_EQ(counted_text("qwen2.5", "qwen", R"({"messages": [{"role": "assistant", "content": "one"},
          {"role": "assistant", "content": "two"}, {"role": "user", "content": "q"}]})"),
            "one<|im_end|>\n|two<|im_end|>\n");
}

TEST(ChatTokens, NamesABeginningThatCannotBeToldApart) {
  const ScratchFolder folder;
  // The first message is rendered in another way than the ones after it.
  write_file(folder.path() / "t.jinja",
             "{% for m in messages %}{{ loop.index0 ~ m.role ~ ':' ~ m.content ~ ';' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ messages|length }}assistant:{% endif %}");
  const auto tokenizer = load_tokenizer("bytes");
  const ChatTemplate chat("bytes", folder.path() / "t.jinja");
  const auto refusal = [&](const char* line) {
    const Conversation conversation = parse_conversation(line);
    return message<InputError>([&] { tokenize_chat(chat, *tokenizer, conversation, LossOn::Assistant); });
  };
  EXPECT_EQ(refusal(kTwoTurns), "");
  const std::string error = refusal(R"({"messages": [{"role": "assistant", "content": "a"}]})");
  EXPECT_TRUE(has(error,
                  "the assistant begins the conversation, and the template writes that turn differently than after a "
                  "message of the user or the system"))
      << error;
}

TEST(ChatTokens, RefusesTurnsThatCannotBeToldApart) {
  const ScratchFolder folder;
  // The number of messages stands at the beginning, and no loop goes through them.
  write_file(folder.path() / "t.jinja",
             "{{ messages|length }}{% for i in range(messages|length) %}{{ messages[i].content }};{% endfor %}");
  const auto tokenizer = load_tokenizer("bytes");
  const ChatTemplate chat("bytes", folder.path() / "t.jinja");
  const Conversation conversation = parse_conversation(kTwoTurns);
  const std::string error =
      message<InputError>([&] { tokenize_chat(chat, *tokenizer, conversation, LossOn::Assistant); });
  EXPECT_TRUE(has(error, "not a prefix of the complete") && has(error, "--loss all")) << error;
  EXPECT_EQ(tokenize_chat(chat, *tokenizer, conversation, LossOn::All).ids.size(), 1U + 4 * 6);
}

TEST(ChatTokens, OfAListOfMessagesAreThoseOfItsConversation) {
  const std::string list = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  const Conversation alone = parse_conversation(list), named = parse_conversation("{\"messages\": " + list + "}");
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}");
  const auto tokenizer = load_tokenizer("bytes");
  const ChatTemplate chat("bytes", folder.path() / "t.jinja");
  EXPECT_EQ(tokenize_chat(chat, *tokenizer, alone, LossOn::All).ids,
            tokenize_chat(chat, *tokenizer, named, LossOn::All).ids);
}

TEST(ChatTokens, OfConversationsThatAreNone) {
  const std::map<std::string, std::string> errors = {
      {"{", "not valid JSON: column 2"},
      {"[1]",
       "a JSON array whose elements are not messages: write each conversation on its own line (jq -c '.[]' does)"},
      {R"([{"messages": [{"role": "user", "content": "a"}]}])", "a JSON array whose elements are not messages: write"},
      {"[]", "the list of messages is empty"},
      {"1", "not a JSON object"},
      {"{}", "neither \"messages\" nor \"prompt\" and \"completion\": it has no keys"},
      {R"({"prompt": "a"})", "neither \"messages\" nor \"prompt\" and \"completion\": its keys are prompt"},
      {R"({"prompt": "a", "response": "b"})", "and \"completion\": call \"response\" \"completion\""},
      {R"({"instruction": "a", "input": "", "output": "b"})",
       R"(: write "instruction", "input" and "output" as {"prompt": the first two, "completion": "output"})"},
      {R"({"conversations": [{"from": "tool", "value": "a"}]})",
       "conversations[0].from is \"tool\": it must be human, user, gpt, assistant or system; write other roles as"},
      {R"({"conversations": [{"value": "a"}]})", "conversations[0] is not an object with a \"role\""},
      {R"({"conversations": "a"})", "\"conversations\" is not a list of messages"},
      {R"({"messages": "a"})", "\"messages\" is not a list of messages"},
      {R"({"messages": []})", "the list of messages is empty"},
      {R"({"messages": [{"content": "a"}]})", "messages[0] is not an object with a \"role\""},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content is neither a string nor a list"},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})",
       "messages[0].weight is 0.5: it must be 0 or 1: a label counts or does not"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": 1})", "\"tools\" is not a list"},
      {R"({"messages": [{"role": "user", "content": "a"}], "prompt": "b"})", "is given together with"},
      {"{" +
           [] {
             std::string keys;
             for (int i = 0; i < 20000; ++i) keys += "\"" + std::to_string(i) + "\":0,";
             return keys;
           }() +
           "\"a\":0}",
       "more than 10,000 keys"},
      {R"({"messages": [)" +
           [] {
             std::string messages = "0";
             for (int i = 0; i < 5000; ++i) messages += ",0";
             return messages;
           }() +
           "]}",
       "more than 4,096 messages"},
      {R"({"messages": [{"role": "user", "content": "a", "n": 18446744073709551615}]})", "has more than 64 bits"},
      {R"({"messages": [{"role": "user", "content": ")"
       "\xff"
       R"("}]})",
       "not valid JSON"},
      {R"({"messages": )" + std::string(500, '[') + std::string(500, ']') + "}", "nested more than 200 levels deep"},
  };
  for (const auto& [line, expected] : errors) {
    const std::string error = message<InputError>([&] { parse_conversation(line); });
    EXPECT_TRUE(has(error, expected)) << line << ": " << error;
  }
}

TEST(ChatTokens, OfShareGpt) {
  const char* const theirs =
      R"({"id": "x", "conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "q one"},
          {"from": "gpt", "value": "a one"}, {"from": "user", "value": "q two"},
          {"from": "assistant", "value": "a two"}]})";
  EXPECT_EQ(counted_text("chatml", "qwen", theirs), "a one<|im_end|>\n|a two<|im_end|>\n");
  const ChatTemplate chat(tokenizer_fixture("qwen"), template_fixture("chatml"));
  const auto text = [&](const std::string& line) { return chat.render(parse_conversation(line), 9, false).text; };
  EXPECT_EQ(text(theirs), text(kSystem));
  EXPECT_EQ(text(R"({"system": "S", "conversations": [{"from": "human", "value": "q"}]})"),
            text(R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}]})"));
  EXPECT_EQ(
      counted_text("chatml", "qwen",
                   R"({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
      "a<|im_end|>\n");
}

TEST(ChatTokens, TakeTheTemplateOfTheFolder) {
  const ScratchFolder folder;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(fs::path(tokenizer_fixture("smollm2")) / file, folder.path() / file);
  }
  const Conversation plain = parse_conversation(R"({"messages": [{"role": "user", "content": "a"}]})");
  const Conversation tools = parse_conversation(R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})");
  const auto text = [&](const Conversation& conversation) {
    return ChatTemplate(folder.path()).render(conversation, 1, false).text;
  };
  EXPECT_TRUE(has(message<InputError>([&] { text(plain); }), "has no chat template"));
  const auto configure = [&](const OrderedJson& chat_template) {
    write_file(folder.path() / "tokenizer_config.json",
               OrderedJson{{"bos_token", {{"content", "<|endoftext|>"}}}, {"chat_template", chat_template}}.dump());
  };
  configure("one {{ bos_token }}");
  EXPECT_EQ(text(plain), "one <|endoftext|>");
  configure({{{"name", "default"}, {"template", "plain"}}, {{"name", "tool_use"}, {"template", "tools"}}});
  EXPECT_EQ(text(plain) + text(tools), "plaintools");
  configure(7);
  EXPECT_TRUE(has(message<InputError>([&] { text(plain); }), "is neither a string nor a list"));
  write_file(folder.path() / "chat_template.jinja", "file");
  EXPECT_EQ(text(plain) + text(tools), "filefile");
  write_file(folder.path() / "additional_chat_templates/tool_use.jinja", "more");
  EXPECT_EQ(text(plain) + text(tools), "filemore");
  write_file(folder.path() / "chat_template.jinja", "\n{% if %}");
  EXPECT_TRUE(has(message<InputError>([&] { text(plain); }), "chat_template.jinja:2:7: an expression is expected"));
  EXPECT_TRUE(has(message<InputError>([] { ChatTemplate chat(tokenizer_fixture("sentencepiece")); }), "SentencePiece"));
}

TEST(ChatTokens, PassOtherKeysToTheTemplate) {
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja",
             "{% for m in messages %}{{ m.content }}|{{ m.content is none }}|{{ m.weight }}|{{ m.function_call.name }}"
             "|{{ m.tool_calls[0].id }}{% endfor %}");
  const Conversation conversation = parse_conversation(
      R"({"messages": [{"role": "assistant", "content": null, "weight": 0, "function_call": {"name": "f"},)"
      R"( "tool_calls": [{"id": "x"}]}]})");
  const ChatTemplate chat(tokenizer_fixture("smollm2"), folder.path() / "t.jinja");
  EXPECT_EQ(chat.render(conversation, 1, false).text, "|False|0|f|x");  // of transformers 5
  EXPECT_FALSE(chat.reads_tools(conversation));
}

// The texts are those of transformers 5.24.
TEST(ChatTokens, PassMessagesAsTransformersDoes) {
  const ScratchFolder folder;
  write_file(folder.path() / "t.jinja", "{{ messages[0] | tojson }}");
  const ChatTemplate chat("bytes", folder.path() / "t.jinja");
  const auto passed = [&](const std::string& message) {
    return chat.render(parse_conversation("{\"messages\": [" + message + "]}"), 1, false).text;
  };
  EXPECT_EQ(passed(R"({"role": "a", "content": null, "tool_calls": null, "x": {"y": null}})"),
            R"({"role": "a", "x": {"y": null}})");
  EXPECT_EQ(passed(R"({"role": "a", "reasoning": "r", "content": "c"})"),
            R"({"thinking": "r", "role": "a", "reasoning": "r", "content": "c", "reasoning_content": "r"})");
  EXPECT_EQ(passed(R"({"role": "a", "thinking": "t", "reasoning": "r"})"),
            R"({"thinking": "t", "role": "a", "reasoning": "r", "reasoning_content": "t"})");
  EXPECT_EQ(passed(R"({"role": "a", "reasoning_content": "c", "thinking": "t"})"),
            R"({"thinking": "t", "role": "a", "reasoning_content": "c"})");
  EXPECT_EQ(passed(R"({"role": "a", "reasoning_content": "c", "thinking": null})"),
            R"({"thinking": "c", "role": "a", "reasoning_content": "c"})");
  EXPECT_EQ(passed(R"({"role": "a", "reasoning": null})"), R"({"role": "a"})");
}

TEST(ChatTokens, KnowsTheTokenThatEndsATurn) {
  const std::string smollm2 = tokenizer_fixture("smollm2"), llama3 = tokenizer_fixture("llama3");
  const auto tokenizer = load_tokenizer(smollm2), other = load_tokenizer(llama3);
  EXPECT_EQ(end_of_turn(ChatTemplate(smollm2, template_fixture("chatml")), *tokenizer),
            tokenizer->token_id("<|im_end|>"));
  EXPECT_EQ(end_of_turn(ChatTemplate(llama3, template_fixture("llama3.1")), *other), other->token_id("<|eot_id|>"));
  EXPECT_EQ(end_of_turn(ChatTemplate(smollm2, template_fixture("gemma2")), *tokenizer), std::nullopt);
  const std::string system = "S";
  EXPECT_EQ(tokenizer->decode(
                tokenize_prompt(ChatTemplate(smollm2, template_fixture("chatml")), *tokenizer, ask("q", &system))),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace meshtrain::testing
