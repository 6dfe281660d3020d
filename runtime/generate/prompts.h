#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {

/// A prompt: a text, or token ids.
struct Prompt {
  std::string text;
  std::vector<int64_t> tokens = {};
  bool is_text = true;
};

/// Parses "1,2,3". Throws InputError that begins with `where`.
Prompt parse_token_prompt(const std::string& list, const std::string& where);

/// Reads the prompts in `file`: in JSON lines (is_json_lines()) each line is one, a JSON string or an object with
/// either "prompt", a string, or "tokens", a list of ids that is not empty; in any other file each line is one as it
/// stands. Blank lines are left out. Throws InputError that names file and line.
std::vector<Prompt> read_prompts(const std::filesystem::path& file);
/// Returns the lines of `text` as prompts; blank ones are left out.
std::vector<Prompt> prompts_of_lines(const std::string& text);

/// Returns the ids of `prompt`, including those that the tokenizer itself puts around a text; for an empty text the
/// token that begins one, if the tokenizer has such. `tokenizer` may be null. `where`: "prompt 2", for messages. Throws
/// InputError when there is no tokenizer for a text, when there are no ids, or when an id is outside of a vocabulary of
/// `vocab_size`.
std::vector<int64_t> encode_prompt(const Prompt& prompt, const Tokenizer* tokenizer, int64_t vocab_size,
                                   const std::string& where);

}  // namespace meshtrain
