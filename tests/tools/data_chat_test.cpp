// `meshtrain data prepare --chat`, and training and generating with what it makes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "runtime/training/data/megatron_index.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class DataChat : public TrainProgram {
 protected:
  static std::string tokenizer() { return source_folder() + "/tests/tokenizer/fixtures/llama3"; }
  static std::string llama3() { return source_folder() + "/tests/chat/fixtures/templates/llama3.jinja"; }

  Words words(const std::string& file, int64_t length, const Words& more = {}) const {
    Words all = {"data",
                 "prepare",
                 "--chat",
                 path(file),
                 "--tokenizer",
                 tokenizer(),
                 "--chat-template",
                 llama3(),
                 "--out",
                 path("chat.bin"),
                 "--sequence-length",
                 std::to_string(length)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::vector<uint16_t> ids() const {
    const std::string bytes = content(path("chat.bin"));
    std::vector<uint16_t> found(bytes.size() / 2);
    std::memcpy(found.data(), bytes.data(), bytes.size());
    return found;
  }

  /// Returns the lengths of the documents of each record.
  std::vector<std::vector<int64_t>> documents(int64_t record) const {
    const MegatronIndex index(path("chat.bin"), static_cast<int64_t>(fs::file_size(path("chat.bin"))));
    const std::vector<int64_t> starts = index.starts_of(0, index.num_documents() + 1);
    std::vector<std::vector<int64_t>> records(static_cast<size_t>(index.num_tokens() / record));
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      records[static_cast<size_t>(starts[i] / record)].push_back(starts[i + 1] - starts[i]);
      EXPECT_EQ(starts[i] / record, (starts[i + 1] - 1) / record) << "document " << i << " lies in one record";
    }
    return records;
  }
};

/// Returns a line of a conversation of one question, repeated, and one answer.
std::string chat_line(int repeats, const std::string& answer = "yes") {
  std::string question;
  for (int i = 0; i < repeats; ++i) question += "a ";
  return nlohmann::json{
             {"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

TEST_F(DataChat, PacksWholeConversations) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += chat_line(1 + i * 7 % 40);
  write("a.jsonl", lines);
  const Ending one = run_meshtrain(words("a.jsonl", 511, {"--workers", "1"}));
  ASSERT_EQ(one.status, 0) << one.err;
  const std::string tokens = content(path("chat.bin")), mask = content(path("chat.mask")),
                    index = content(path("chat.idx"));
  const std::vector<uint16_t> packed = ids();
  ASSERT_EQ(packed.size() % 512, 0u);
  ASSERT_EQ(mask.size(), packed.size());
  const auto records = documents(512);
  size_t num_documents = 0, padding = 0;
  size_t at = 0;
  for (const std::vector<int64_t>& lengths : records) {
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), 512);
    for (const int64_t length : lengths) {
      const std::string_view counted = std::string_view(mask).substr(at, static_cast<size_t>(length));
      EXPECT_EQ(counted[0], 0) << "the first token of a document is nobody's label";
      const auto num_counted = std::count(counted.begin(), counted.end(), '\1');
      if (num_counted == 0) {
        padding += static_cast<size_t>(length);
      } else {
        ++num_documents;
        EXPECT_EQ(counted.find('\1') + static_cast<size_t>(num_counted), counted.size())
            << "the answer stands at the end";
      }
      at += static_cast<size_t>(length);
    }
  }
  EXPECT_EQ(num_documents, 200u);
  EXPECT_LT(padding, packed.size() / 10) << "records are well filled";
  EXPECT_TRUE(has(one.out, "200 conversations; ")) << one.out;
  const std::string printed =
      "\n# for the recipe:\ndata: {tokens: " + path("chat.bin").string() +
      ", dtype: megatron, layout: records, documents: index, loss_mask: " + path("chat.mask").string() +
      "}\ntrain: {sequence_length: 511}\n";
  EXPECT_TRUE(one.out.ends_with(printed)) << one.out;

  const Ending four = run_meshtrain(words("a.jsonl", 511, {"--workers", "4"}));
  ASSERT_EQ(four.status, 0) << four.err;
  EXPECT_EQ(four.out, one.out);
  EXPECT_TRUE(tokens == content(path("chat.bin")) && mask == content(path("chat.mask")) &&
              index == content(path("chat.idx")));

  ASSERT_EQ(std::system(("gzip -k " + path("a.jsonl").string()).c_str()), 0);
  write("chat.bin.json",
        R"({"format":"meshtrain tokens","version":1,"dtype":"uint32","tokens":7,"layout":"stream",)"
        R"("separator":0,"vocabulary_size":9,"tokenizer":"bytes","tokenizer_checksum":"","command":""})");
  const Ending compressed = run_meshtrain(words("a.jsonl.gz", 511));
  ASSERT_EQ(compressed.status, 0) << compressed.err;
  EXPECT_TRUE(tokens == content(path("chat.bin")) && mask == content(path("chat.mask")));
  const auto sidecar = nlohmann::json::parse(content(path("chat.bin.json")));  // and not of the tokens before
  EXPECT_EQ(sidecar["tokens"], packed.size());
  EXPECT_EQ(sidecar["layout"], "records");
  EXPECT_EQ(sidecar["index"], "chat.idx");
  EXPECT_EQ(sidecar["loss_mask"], "chat.mask");
  EXPECT_EQ(sidecar["sequence_length"], 511);
  EXPECT_EQ(sidecar["samples"], 200);
  EXPECT_EQ(sidecar["tokenizer"], tokenizer());
  EXPECT_TRUE(sidecar["separator"].is_null());
  EXPECT_TRUE(has(sidecar["command"].get<std::string>(), "prepare --chat")) << sidecar;

  const Ending apart = run_meshtrain(words("a.jsonl", 511, {"--no-packing"}));
  ASSERT_EQ(apart.status, 0) << apart.err;
  EXPECT_EQ(documents(512).size(), 200u);
}

TEST_F(DataChat, InspectShowsWhichTokensCount) {
  write("a.jsonl", chat_line(1, "first") + chat_line(1, "second") + chat_line(60, "third"));
  ASSERT_EQ(run_meshtrain(words("a.jsonl", 199)).status, 0);
  const Ending shown = run_meshtrain({"data", "inspect", path("chat.bin"), "--count", "200", "--samples", "2"});
  ASSERT_EQ(shown.status, 0) << shown.err;
  EXPECT_TRUE(has(shown.out, "packed        in records for sequences of 199 tokens\n")) << shown.out;
  const std::string mask = content(path("chat.mask"));
  EXPECT_TRUE(has(shown.out, "loss mask     " + path("chat.mask").string() + ": " +
                                 std::to_string(std::count(mask.begin(), mask.end(), '\1')) +
                                 " tokens count as labels ("))
      << shown.out;
  EXPECT_TRUE(has(shown.out, "documents     3 by the index, of ")) << shown.out;
  EXPECT_TRUE(has(shown.out, "; 2 more of padding\n")) << shown.out;
  EXPECT_TRUE(has(shown.out, "of which count first<|eot_id|> | second<|eot_id|>\n")) << shown.out;
  EXPECT_TRUE(has(shown.out, "at 200       ")) << "a sample begins where a record does: " << shown.out;
  EXPECT_TRUE(has(shown.out, "of which count third<|eot_id|>\n")) << shown.out;
  const Ending full = run_meshtrain({"data", "inspect", path("chat.bin")});
  ASSERT_EQ(full.status, 0) << full.err;
  for (const char* text : {"first", "second", "third"}) {
    EXPECT_TRUE(has(full.out, "of which count " + std::string(text) + "<|eot_id|>\n")) << full.out;
  }
  EXPECT_EQ(count(full.out, "as text       "), 3) << "padding is no conversation: " << full.out;
  const Ending one = run_meshtrain({"data", "inspect", path("chat.bin"), "--samples", "1"});
  EXPECT_EQ(count(one.out, "of which count"), 1) << one.out;
  EXPECT_EQ(count(one.out, "<|eot_id|>"), 3) << "the question, the answer, and the answer's labels: " << one.out;
  fs::remove(path("chat.mask"));
  const Ending without = run_meshtrain({"data", "inspect", path("chat.bin")});
  EXPECT_TRUE(has(without.out, "chat.mask: the .json file names it, but it does not exist\n")) << without.out;
}

TEST_F(DataChat, SaysWhatBecomesOfLongConversations) {
  write("a.jsonl", chat_line(2) + chat_line(60) + chat_line(2, "a long answer, which goes on and on and on and on"));
  const Ending dropped = run_meshtrain(words("a.jsonl", 69));
  ASSERT_EQ(dropped.status, 0) << dropped.err;
  EXPECT_TRUE(
      has(dropped.out, "2 conversations of more than 70 tokens were left out (--too-long drop); the longest has "))
      << dropped.out;
  EXPECT_EQ(documents(70).size(), 1u);
  const Ending cut = run_meshtrain(words("a.jsonl", 69, {"--too-long", "truncate"}));
  EXPECT_TRUE(has(cut.out, "2 conversations of more than 70 tokens were cut to that length (--too-long truncate)"))
      << cut.out;
  EXPECT_TRUE(has(cut.out, "1 conversation without a label that counts was left out")) << cut.out;
  EXPECT_EQ(documents(70).size(), 2u);
  const auto counted = [&] {
    const std::string mask = content(path("chat.mask"));
    return std::count(mask.begin(), mask.end(), '\1');
  };
  const auto some = counted();
  const Ending split = run_meshtrain(words("a.jsonl", 69, {"--too-long", "split"}));
  EXPECT_TRUE(has(split.out, "were split (--too-long split)")) << split.out;
  EXPECT_GT(counted(), some);
  const Ending full = run_meshtrain(words("a.jsonl", 200));
  ASSERT_EQ(full.status, 0) << full.err;
  const auto all = counted();
  const Ending again = run_meshtrain(words("a.jsonl", 69, {"--too-long", "split"}));
  EXPECT_EQ(counted(), all) << "no label is lost";
}

TEST_F(DataChat, MakesTheFolderOfItsOutput) {
  write("a.jsonl", chat_line(1));
  Words elsewhere = words("a.jsonl", 64);
  *std::find(elsewhere.begin(), elsewhere.end(), path("chat.bin").string()) = path("new/folder/c.bin").string();
  ASSERT_EQ(run_meshtrain(elsewhere).status, 0);
  for (const char* file : {"c.bin", "c.idx", "c.mask", "c.bin.json"})
    EXPECT_TRUE(fs::exists(path("new/folder") / file));
}

TEST_F(DataChat, ChoosesAmongTheFilesOfAFolder) {
  const auto answers = [&](const Words& more) {
    const Ending ending = run_meshtrain(words("in", 249, more));
    if (ending.status != 0) return only_complaint(ending);
    const Ending shown = run_meshtrain({"data", "inspect", path("chat.bin"), "--count", "400"});
    std::string found;
    for (const char* answer : {"one", "two", "six"}) {
      if (has(shown.out, std::string(answer) + "<|eot_id|>")) found += std::string(found.empty() ? "" : " ") + answer;
    }
    return found;
  };
  fs::create_directories(path("in/deep"));
  fs::create_directories(path("in/.hidden"));
  write("in/b.jsonl", chat_line(1, "one"));
  write("in/deep/a.ndjson", chat_line(1, "two"));
  write("in/.hidden/c.jsonl", chat_line(1, "hidden"));
  write("in/notes.md", "no conversation");
  write("elsewhere.jsonl", chat_line(1, "six"));
  fs::create_symlink(path("elsewhere.jsonl"), path("in/link.jsonl"));
  write("in/settings.json", "{\"a\": 1}");
  EXPECT_EQ(answers({}), "one two six");
  const std::string all = content(path("chat.bin"));
  EXPECT_EQ(answers({"--exclude", "b.*"}), "two six");
  EXPECT_EQ(answers({"--include", "*.ndjson", "link*"}), "two six");
  EXPECT_EQ(answers({"--include", "deep/*"}), "two");
  EXPECT_EQ(answers({"--include", "*.jsonl", "--exclude", "link.jsonl"}), "one");
  EXPECT_TRUE(has(answers({"--include", "*.txt"}), "--include and --exclude leave no file of " + path("in").string()));
  EXPECT_TRUE(has(answers({"--include", "*.md"}), "the given folders have no *.jsonl or *.ndjson"));
  fs::create_symlink(path("gone"), path("in/dangling.jsonl"));
  EXPECT_TRUE(has(answers({}), "dangling.jsonl: it is a link to " + path("gone").string() + ", which does not exist"));
  EXPECT_EQ(answers({"--exclude", "dangling*"}), "one two six");
  EXPECT_EQ(content(path("chat.bin")), all) << "in the order of the paths";
  fs::remove(path("in/dangling.jsonl"));
  fs::create_symlink(path("in/b.jsonl"), path("in/again.jsonl"));
  EXPECT_TRUE(has(answers({}), "are the same file: leave one out"));
}

TEST_F(DataChat, TakesLinesWhoseNameIsJson) {
  write("a.jsonl", chat_line(1) + chat_line(2));
  ASSERT_EQ(run_meshtrain(words("a.jsonl", 511)).status, 0);
  const std::string expected = content(path("chat.bin"));
  fs::create_directories(path("in"));
  fs::rename(path("a.jsonl"), path("in/a.json"));
  for (const char* input : {"in/a.json", "in"}) {
    const Ending ending = run_meshtrain(words(input, 511));
    ASSERT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(content(path("chat.bin")), expected);
  }
  write("in/a.json", "[" + chat_line(1) + "]");
  EXPECT_TRUE(has(only_complaint(run_meshtrain(words("in/a.json", 511))),
                  ": jq -c '.[]' " + path("in/a.json").string() + " > FILE.jsonl makes one of it"));
}

TEST_F(DataChat, SaysWhatIsUnusual) {
  fs::create_directories(path("in"));
  write("in/a.jsonl", chat_line(1) + R"([{"role": "user", "content": "a"}, {"role": "assistent", "content": "b"}, )"
                                     R"({"role": "assistant", "content": [{"type": "text", "text": "c"}]}])"
                                     "\n");
  write("print.jinja",
        "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}");
  Words printing = words("in", 255, {"--include", "*.jsonl", "*.json", "--exclude", "b*"});
  *std::find(printing.begin(), printing.end(), llama3()) = path("print.jinja");
  const Ending ending = run_meshtrain(printing);
  ASSERT_EQ(ending.status, 0) << ending.err;
  const std::string where = path("in/a.jsonl").string() + ":2";
  EXPECT_TRUE(has(ending.err,
                  "meshtrain: warning: 1 message has a role other than system, developer, user, assistant, tool, "
                  "function and ipython, and therefore no labels; the first: " +
                      where + ": assistent\n"))
      << ending.err;
  EXPECT_TRUE(has(ending.err,
                  "meshtrain: warning: 1 conversation has a \"content\" that is a list of parts, which the template "
                  "prints as Python does ([{'type': ...), as with transformers: write it as one text; the "
                  "first: " +
                      where + "\n"))
      << ending.err;
  EXPECT_TRUE(has(ending.err,
                  "meshtrain: warning: --include *.json matches no file below the given folders\n"
                  "meshtrain: warning: --exclude b* matches no file below the given folders\n"))
      << ending.err;
}

TEST_F(DataChat, BadLinesAreNamedOrCounted) {
  write("a.jsonl", chat_line(1) + "\n{\"messages\": [\n" + chat_line(1));
  write("roles.jsonl", chat_line(1) + "{\"prompt\": \"q\"}\n" + "{\"messages\": [{\"role\": 5}]}\n");
  EXPECT_TRUE(
      has(only_complaint(run_meshtrain(words("a.jsonl", 64))), path("a.jsonl").string() + ":3: not valid JSON: "));
  EXPECT_TRUE(has(only_complaint(run_meshtrain(words("roles.jsonl", 64))),
                  path("roles.jsonl").string() + ":2: neither \"messages\" nor"));
  for (const char* file : {"chat.bin", "chat.idx", "chat.mask", "chat.bin.partial"})
    EXPECT_FALSE(fs::exists(path(file)));
  const Ending skipped = run_meshtrain(words("roles.jsonl", 64, {"--skip-bad"}));
  ASSERT_EQ(skipped.status, 0) << skipped.err;
  EXPECT_TRUE(
      has(skipped.out, "2 bad lines were skipped (--skip-bad), the first: " + path("roles.jsonl").string() + ":2: "))
      << skipped.out;
  EXPECT_TRUE(has(skipped.out, "  1 line: messages[N] is not an object with a \"role\"\n")) << skipped.out;
  write("unread.jsonl", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], )"
                        R"("tools": [{"name": "f"}]})"
                        "\n");
  const Ending unread = run_meshtrain(words("unread.jsonl", 64));
  EXPECT_TRUE(has(unread.err, "warning: 1 conversation with tools, which the template does not mention")) << unread.err;
  EXPECT_FALSE(has(unread.err, "that the template leaves out")) << unread.out;
  write("call.jinja",
        "{% for m in messages %}{% if m.content %}{{ m.role }}: {{ m.content }};{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}");
  write("call.jsonl",
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"id": "x"}]}, )"
        R"({"role": "tool", "content": "4"}, {"role": "assistant", "content": "b"}]})");
  Words calls = words("call.jsonl", 64);
  *std::find(calls.begin(), calls.end(), llama3()) = path("call.jinja");
  const Ending unwritten = run_meshtrain(calls);
  ASSERT_EQ(unwritten.status, 0) << unwritten.err;
  EXPECT_TRUE(has(unwritten.err,
                  "meshtrain: warning: 1 conversation with an assistant message that the template leaves out, such as "
                  "tool calls alone: the message has no label\n"))
      << unwritten.err;

  write("refused.jsonl", R"({"messages": [{"role": "assistant", "content": "a"}]})"
                         "\n");
  Words refused = words("refused.jsonl", 64);
  *std::find(refused.begin(), refused.end(), llama3()) =
      source_folder() + "/tests/chat/fixtures/templates/mistral_v1.jinja";
  EXPECT_TRUE(has(only_complaint(run_meshtrain(refused)), "refused.jsonl:1: "));
  EXPECT_TRUE(has(only_complaint(run_meshtrain(refused)), "Conversation roles must alternate"));
  write("none.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})"
                      "\n");
  EXPECT_TRUE(
      has(only_complaint(run_meshtrain(words("none.jsonl", 64))),
          "no conversation is left of 1: 0 bad lines, 0 of more than 65 tokens, 1 without a label that counts"));
  write("roles.jsonl", R"({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]})"
                       "\n");
  EXPECT_TRUE(has(only_complaint(run_meshtrain(words("roles.jsonl", 64))),
                  "1 without a label that counts; no message has the role assistant, whose labels count: the roles are "
                  "bot, user: rename"));
  write("a.txt", "{}");
  EXPECT_TRUE(has(only_complaint(run_meshtrain(words("a.txt", 64))),
                  "conversations are JSON lines, in a file *.jsonl or *.ndjson: if each of its lines is"));
  write("a.json", "\n [{}]");
  EXPECT_TRUE(has(only_complaint(run_meshtrain(words("a.json", 64))),
                  "*.ndjson: jq -c '.[]' " + path("a.json").string() + " > FILE.jsonl makes one of it"));
  for (const char* empty : {"", "\n\n"}) {
    write("empty.jsonl", empty);
    EXPECT_TRUE(has(only_complaint(run_meshtrain(words("empty.jsonl", 64))), "empty.jsonl: the file is empty"));
  }
  Words no_tokenizer = words("a.jsonl", 64);
  *std::find(no_tokenizer.begin(), no_tokenizer.end(), tokenizer()) = path("nothing").string();
  EXPECT_TRUE(has(only_complaint(run_meshtrain(no_tokenizer)),
                  "cannot read " + path("nothing").string() + ": there is no such file or folder"));
  Words no_template = words("a.jsonl", 64);
  const auto option = std::find(no_template.begin(), no_template.end(), "--chat-template");
  no_template.erase(option, option + 2);
  EXPECT_TRUE(has(only_complaint(run_meshtrain(no_template)), "has no chat template"));
  Words other = words("a.jsonl", 64);
  *std::find(other.begin(), other.end(), path("chat.bin").string()) = path("chat.tokens").string();
  EXPECT_EQ(only_complaint(run_meshtrain(other)), "--out must be NAME.bin with --chat, not " +
                                                      path("chat.tokens").string() +
                                                      ": NAME.idx and NAME.mask are written next to it");
}

// The loss of a run on what was prepared is that of the assistant's labels, and the model learns to answer and to stop.
TEST_F(DataChat, TrainsOnTheAssistantsLabels) {
  write("a.jsonl",
        R"({"messages": [{"role": "user", "content": "one?"}, {"role": "assistant", "content": "the first"}]})"
        "\n"
        R"({"messages": [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "a second"}]})"
        "\n");
  const Ending prepared = run_meshtrain(words("a.jsonl", 159, {"--no-packing"}));
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const std::string mask = content(path("chat.mask"));
  const auto labels = std::count(mask.begin(), mask.end(), '\1');
  ASSERT_GT(labels, 0);
  const std::string data =
      "data={tokens: " + path("chat.bin").string() +
      ", dtype: megatron, layout: records, documents: index, loss_mask: " + path("chat.mask").string() + "}";
  const Ending careless =
      train(1, {"--check", "--set", data, "--set", "data.loss_mask=null", "--set", "data.documents=null", "--set",
                "model.vocab_size=2048", "--set", "train.sequence_length=159", "--set", "train.global_batch=2", "--set",
                "evaluate.tokens=" + path("chat.bin").string()});
  EXPECT_EQ(careless.status, 0) << careless.err;
  for (const char* key : {"data.loss_mask", "evaluate.loss_mask"}) {
    EXPECT_TRUE(has(careless.err, std::string("meshtrain: warning: ") + key + ": ")) << key << ": " << careless.err;
  }
  EXPECT_FALSE(has(careless.err, ".documents: ")) << "one conversation in a sequence: " << careless.err;
  const Words common = {
      "--set",
      data,
      "--set",
      "model.vocab_size=2048",
      "--set",
      "train.sequence_length=159",
      "--set",
      "train.global_batch=2",
      "--set",
      "evaluate={every: 1, tokens: " + path("chat.bin").string() + ", loss_mask: " + path("chat.mask").string() + "}"};
  const auto with = [&](const Words& more) {
    Words all = common;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Ending still = train(1, with({"--set", "train.steps=2", "--set", "optimizer.learning_rate=1e-30"}));
  ASSERT_EQ(still.status, 0) << still.err;
  EXPECT_EQ(metrics().at(0).at("eval_tokens"), labels);
  EXPECT_NEAR(metrics().at(1).at("loss"), metrics().at(0).at("eval_loss"), 1e-5) << "both have the same labels";

  run_dir = path("learned");
  const Ending learned = train(1, with({"--set", "train.steps=80", "--set", "train.export=" + path("model").string()}));
  ASSERT_EQ(learned.status, 0) << learned.err;
  for (const auto& [question, answer] : {std::pair{"one?", "the first"}, {"two?", "a second"}}) {
    const Ending said =
        run_meshtrain({"generate", path("model"), "--tokenizer", tokenizer(), "--chat", "--chat-template", llama3(),
                       "--prompt", question, "--json", "--ignore-generation-config", "--max-tokens", "20"});
    ASSERT_EQ(said.status, 0) << said.err;
    const nlohmann::json line = nlohmann::json::parse(said.out);
    EXPECT_EQ(line.at("text"), answer) << said.out;
    EXPECT_EQ(line.at("ended"), "eos") << "at <|eot_id|>, which only the template names: " << said.out;
  }
  // Two conversations of several turns, the second of which the model continues.
  const auto message = [](const char* role, const char* text) {
    return nlohmann::json{{"role", role}, {"content", text}};
  };
  nlohmann::json asked = {message("user", "one?"), message("assistant", "the first"), message("user", "two?")};
  write("asked.jsonl", nlohmann::json{{"messages", asked}, {"tools", {{{"name", "f"}}}}}.dump() + "\n" +
                           nlohmann::json{{"prompt", {message("user", "two?"), message("assistant", "a")}}}.dump());
  const Words answer = {"generate",        path("model"), "--tokenizer",   tokenizer(),         "--chat",
                        "--chat-template", llama3(),      "--prompt-file", path("asked.jsonl"), "--json",
                        "--max-tokens",    "20"};
  EXPECT_TRUE(
      has(only_complaint(run_meshtrain(answer)), "asked.jsonl:2: the conversation ends with an assistant message"));
  Words continuing = answer;
  continuing.push_back("--continue-final-message");
  const Ending answered = run_meshtrain(continuing);
  ASSERT_EQ(answered.status, 0) << answered.err;
  std::istringstream answers(answered.out);
  std::string first, second;
  std::getline(answers, first), std::getline(answers, second);
  const nlohmann::json one = nlohmann::json::parse(first), two = nlohmann::json::parse(second);
  EXPECT_EQ(one.at("messages"), asked);
  EXPECT_TRUE(has(answered.err, "asked.jsonl:1 has tools, which the template does not mention")) << answered.err;
  EXPECT_GT(one.at("prompt_tokens").size(), 40U) << "all turns are there";
  EXPECT_FALSE(one.contains("prompt"));
  EXPECT_EQ(two.at("prompt").size(), 2U);
  EXPECT_EQ(two.at("text"), " second") << second;
  EXPECT_EQ(two.at("ended"), "eos");
  EXPECT_TRUE(has(
      only_complaint(run_meshtrain({"generate", path("model"), "--tokenizer", tokenizer(), "--chat", "--prompt", "a"})),
      "has no chat template"));
  EXPECT_TRUE(has(run_meshtrain({"generate", path("model"), "--system", "a", "--prompt", "b"}).err, "--chat"));
}

}  // namespace
}  // namespace meshtrain::testing
