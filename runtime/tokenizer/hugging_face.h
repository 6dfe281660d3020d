#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {

/// The content of a tokenizer.json.
struct HuggingFaceParts {
  bool nfc = false;
  std::vector<PreTokenizerStep> steps;
  BpeOptions bpe;
  std::unordered_map<std::string, uint32_t> ids;  // by the model's tokens, as the file spells them
  std::vector<AddedToken> added;                  // no two with the same content
  std::vector<int64_t> before, after;             // ids around every text
};

/// Reads a tokenizer.json. Throws InputError as load_tokenizer() does.
HuggingFaceParts read_hugging_face(const std::string& file);

/// Makes the tokenizer of a tokenizer.json. Throws InputError as load_tokenizer() does.
std::shared_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file);

}  // namespace meshtrain
