#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {

/// What is gone on with: a text, or the tokens of one.
struct Prompt {
  std::string text;
  std::vector<int64_t> tokens = {};
  bool is_text = true;
};

/// "1,2,3". Throws InputError that begins with `where`.
Prompt parse_token_prompt(const std::string& list, const std::string& where);

/// The prompts in `file`: of JSON lines (is_json_lines()) each is one, a JSON string or an object with either "prompt",
/// a string, or "tokens", a list of ids that is not empty; of any other file the lines themselves. Lines with nothing
/// on them are left out. Throws InputError that names file and line.
std::vector<Prompt> read_prompts(const std::filesystem::path& file);
/// As lines of a file; the same of stdin, with the name "stdin".
std::vector<Prompt> prompts_of_lines(const std::string& text);

/// The ids of `prompt`: what the tokenizer itself puts around a text included; of an empty text its token that begins
/// one, where it has such. `tokenizer` may be null. `where`: "prompt 2", for messages. Throws InputError when there is
/// no tokenizer for a text, when nothing is left to go on with, or when an id is outside of a vocabulary of
/// `vocab_size`.
std::vector<int64_t> encode_prompt(const Prompt& prompt, const Tokenizer* tokenizer, int64_t vocab_size,
                                   const std::string& where);

}  // namespace meshtrain
