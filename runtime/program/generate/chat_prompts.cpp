#include "runtime/program/generate/chat_prompts.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "mesh/base/error.h"
#include "mesh/base/files/compressed_file.h"
#include "mesh/base/files/json_lines.h"
#include "mesh/base/files/lower_case.h"
#include "runtime/text/chat/chat_tokens.h"
#include "runtime/text/chat/unfinished.h"

namespace meshtrain {
namespace {

using nlohmann::json;

/// Returns the key under which `object` has its conversation; empty for a list of messages.
std::string key_of(const json& object) {
  if (!object.is_object()) return "";
  for (const char* key : {"messages", "conversations"}) {
    if (object.contains(key) && !object[key].is_null()) return key;
  }
  return "prompt";
}

/// Returns what to do with a conversation that ends with the assistant.
std::string describe_answered(const std::string& key) {
  std::string shorter = "remove the last message";
  if (!key.empty()) shorter += " (jq -c '." + key + " |= .[:-1]' does)";
  return "the conversation ends with an assistant message, so there is nothing to answer: " + shorter +
         ", or give --continue-final-message to have that message continued";
}

/// Returns the prompt of one JSON value, which stands at `location`.
Prompt chat_prompt(std::string_view text, const std::string& location, const ChatPromptOptions& options) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string key = key_of(value);
  const bool has_tokens = value.is_object() && value.contains("tokens") && key == "prompt";
  if (value.is_string() || has_tokens) return parse_json_prompt(text, location);
  try {
    Prompt prompt{"", {}, false};
    prompt.conversation = parse_open_conversation(text);
    if (ends_with_assistant(*prompt.conversation) && !options.continues_assistant) {
      throw InputError(describe_answered(key));
    }
    prompt.key = key.empty() ? "messages" : key;
    prompt.json = (key.empty() ? value : value[key]).dump();
    prompt.location = location;
    return prompt;
  } catch (const InputError& error) {
    throw InputError(location + ": " + error.what());
  }
}

int64_t line_of(std::string_view text, size_t byte) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(std::min(byte, text.size())), '\n');
}

/// Calls `action` with each element of the JSON array `text`, which is valid, and with the byte that it begins at.
void for_each_element(std::string_view text, const std::function<void(std::string_view element, size_t at)>& action) {
  constexpr std::string_view kSpaces = " \t\r\n";
  size_t depth = 0, begin = std::string_view::npos;
  bool in_string = false;
  const auto end_element = [&](size_t end) {
    if (begin != std::string_view::npos) action(text.substr(begin, end - begin), begin);
    begin = std::string_view::npos;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    const bool closes = c == ']' || c == '}';
    if (depth == 1 && (c == ',' || closes)) {
      end_element(i);
    } else if (depth > 0 && begin == std::string_view::npos && kSpaces.find(c) == std::string_view::npos) {
      begin = i;
    }
    in_string = c == '"';
    if (c == '[' || c == '{') ++depth;
    if (closes) --depth;
  }
}

/// Returns the prompts of one JSON value: an array of them, or one.
std::vector<Prompt> prompts_of_json(std::string_view text, const std::string& file, const ChatPromptOptions& options) {
  const size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  json full;
  try {
    full = json::parse(text);
  } catch (const json::exception& error) {
    const auto* const parsing = dynamic_cast<const json::parse_error*>(&error);
    throw InputError(file + ":" + std::to_string(line_of(text, parsing == nullptr ? 0 : parsing->byte)) +
                     ": not valid JSON; if each of its lines is a JSON object, call the file *.jsonl");
  }
  const auto location = [&](size_t at) { return file + ":" + std::to_string(line_of(text, at)); };
  const bool is_one = !full.is_array() || (!full.empty() && full[0].is_object() && full[0].contains("role"));
  if (is_one) return {chat_prompt(text.substr(first), location(first), options)};
  std::vector<Prompt> prompts;
  for_each_element(text, [&](std::string_view element, size_t at) {
    prompts.push_back(chat_prompt(element, location(at), options));
  });
  return prompts;
}

}  // namespace

std::vector<Prompt> read_chat_prompts(const std::filesystem::path& file, const ChatPromptOptions& options) {
  const std::string text = read_prompt_text(file);
  if (!is_json_lines(file, {})) {
    const bool is_json = lower_case(uncompressed_name(file).extension()) == ".json";
    return is_json ? prompts_of_json(text, file.string(), options) : prompts_of_lines(text);
  }
  std::vector<Prompt> prompts;
  for_each_prompt_line(text, [&](std::string_view line, int64_t number) {
    prompts.push_back(chat_prompt(line, file.string() + ":" + std::to_string(number), options));
  });
  return prompts;
}

Prompt render_prompt(const Prompt& prompt, const ChatTemplate& chat, const Tokenizer& tokenizer,
                     const ChatPromptOptions& options) {
  if (prompt.is_text) return {"", tokenize_prompt(chat, tokenizer, ask(prompt.text, options.system)), false};
  if (!prompt.conversation) return prompt;
  try {
    const Conversation conversation =
        options.system == nullptr ? *prompt.conversation : after_system(*prompt.conversation, *options.system);
    const bool continues = options.continues_assistant && ends_with_assistant(conversation);
    const auto tokenize = continues ? tokenize_unfinished : tokenize_prompt;
    return {"", tokenize(chat, tokenizer, conversation), false};
  } catch (const InputError& error) {
    throw InputError(prompt.location + ": " + error.what());
  }
}

}  // namespace meshtrain
