#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat/conversation.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// A prompt: a text, token ids, or a conversation.
struct Prompt {
  std::string text;
  std::vector<int64_t> tokens = {};
  bool is_text = true;
  std::optional<Conversation> conversation = {};  ///< given: in the place of the others
  std::string key = {}, json = {};                ///< of a conversation: how its file has it, "messages" and a list
  std::string location = {};                      ///< of a conversation: "FILE:LINE"
};

/// Parses "1,2,3". Throws InputError that begins with `where`.
Prompt parse_token_prompt(const std::string& list, const std::string& where);

/// Reads the prompts in `file`: in JSON lines (is_json_lines()) each line is one, a JSON string or an object with
/// either "prompt", a string, or "tokens", a list of ids that is not empty; in any other file each line is one as it
/// stands. Blank lines are left out. Throws InputError that names file and line.
std::vector<Prompt> read_prompts(const std::filesystem::path& file);
/// Reads all of `file`, decompressed where its name says that it is compressed (compression_of()). Throws InputError
/// when it cannot be read.
std::string read_prompt_text(const std::filesystem::path& file);
/// Parses a line of JSON lines as read_prompts() does. Throws InputError that begins with `location`.
Prompt parse_json_prompt(std::string_view line, const std::string& location);
/// Returns the lines of `text` as prompts; blank ones are left out.
std::vector<Prompt> prompts_of_lines(const std::string& text);
/// Calls `action` with the lines of `text` that are not blank, and with their numbers from 1 on.
void for_each_prompt_line(std::string_view text,
                          const std::function<void(std::string_view line, int64_t number)>& action);

/// Returns the ids of `prompt`, including those that the tokenizer itself puts around a text; for an empty text the
/// token that begins one, if the tokenizer has such. `tokenizer` may be null. `where`: "prompt 2", for messages. Throws
/// InputError when there is no tokenizer for a text, when there are no ids, or when an id is outside of a vocabulary of
/// `vocab_size`.
std::vector<int64_t> encode_prompt(const Prompt& prompt, const Tokenizer* tokenizer, int64_t vocab_size,
                                   const std::string& where);

}  // namespace meshtrain
