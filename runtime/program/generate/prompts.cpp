#include "runtime/program/generate/prompts.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/base/files/compressed_file.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_lines.h"
#include "mesh/base/files/json_object.h"
#include "runtime/text/tokenizer/json_cursor.h"

namespace meshtrain {
namespace {

using nlohmann::json;

/// Returns true for an object that is a conversation and no prompt.
bool is_conversation(const json& object) {
  if (object.contains("tokens")) return false;
  if (object.contains("prompt")) return object["prompt"].is_array();
  return object.contains("messages") || object.contains("conversations");
}

}  // namespace

Prompt parse_token_prompt(const std::string& list, const std::string& where) {
  Prompt prompt{"", {}, false};
  const char *next = list.data(), *end = next + list.size();
  while (true) {
    uint32_t id = 0;
    const auto [stop, error] = std::from_chars(next, end, id);
    if (error != std::errc() || (stop != end && *stop != ',')) {
      throw InputError(where + ": \"" + list + "\" is not a list of token ids, such as 1,2,3");
    }
    prompt.tokens.push_back(id);
    if (stop == end) return prompt;
    next = stop + 1;
  }
}

std::string read_prompt_text(const std::filesystem::path& file) {
  if (compression_of(file) == Compression::None) return std::string(read_all(file).text());
  CompressedFile compressed(file);
  std::string text, block(size_t{1} << 20, '\0');
  while (const size_t count = compressed.read(block.data(), block.size())) text.append(block, 0, count);
  return text;
}

Prompt parse_json_prompt(std::string_view line, const std::string& location) {
  refuse_deep_json(location, line);
  const json document = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (document.is_string()) return {document.get<std::string>()};
  const JsonCursor object(location, document);
  if (document.is_discarded() || !document.is_object()) {
    throw InputError(location + ": neither a JSON string nor an object with \"prompt\" or \"tokens\"");
  }
  if (is_conversation(document)) throw InputError(location + ": the object is a conversation: give --chat");
  const std::optional<JsonCursor> text = object.find("prompt"), tokens = object.find("tokens");
  if (text && tokens) throw InputError(location + ": the object has both \"prompt\" and \"tokens\": leave one out");
  if (text) return {text->text()};
  if (!tokens) throw InputError(location + ": the object has neither \"prompt\" nor \"tokens\"");
  Prompt prompt{"", {}, false};
  for (size_t i = 0; i < tokens->size(); ++i) prompt.tokens.push_back(tokens->at(i).id());
  if (prompt.tokens.empty()) tokens->fail("is an empty list: name a token to continue from");
  return prompt;
}

void for_each_prompt_line(std::string_view text,
                          const std::function<void(std::string_view line, int64_t number)>& action) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) action(line, number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::vector<Prompt> prompts_of_lines(const std::string& text) {
  std::vector<Prompt> prompts;
  for_each_prompt_line(text, [&](std::string_view line, int64_t) { prompts.push_back({std::string(line)}); });
  return prompts;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& file) {
  const std::string text = read_prompt_text(file);
  if (!is_json_lines(file, {"prompt", "tokens"})) return prompts_of_lines(text);
  std::vector<Prompt> prompts;
  for_each_prompt_line(text, [&](std::string_view line, int64_t number) {
    prompts.push_back(parse_json_prompt(line, file.string() + ":" + std::to_string(number)));
  });
  return prompts;
}

std::vector<int64_t> encode_prompt(const Prompt& prompt, const Tokenizer* tokenizer, int64_t vocab_size,
                                   const std::string& where) {
  if (prompt.is_text && tokenizer == nullptr) {
    throw InputError(where +
                     " is text, but the model's folder has no tokenizer: give --tokenizer (a folder, a file or the "
                     "word bytes), or token ids with --tokens");
  }
  std::vector<int64_t> ids = prompt.is_text ? tokenizer->ids(prompt.text) : prompt.tokens;
  if (ids.empty() && tokenizer != nullptr && tokenizer->bos()) ids.push_back(*tokenizer->bos());
  if (ids.empty())
    throw InputError(where +
                     " is empty, and the model has no token for the beginning of a text: give at least one token");
  for (const int64_t id : ids) {
    if (id < vocab_size) continue;
    throw InputError(where + " has token " + std::to_string(id) + ", the model's vocabulary has " +
                     std::to_string(vocab_size) + (prompt.is_text ? ": the tokenizer is not the model's" : ""));
  }
  return ids;
}

}  // namespace meshtrain
