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

/// What a tokenizer.json says.
struct HuggingFaceParts {
  bool nfc = false;
  std::vector<PreTokenizerStep> steps;
  BpeOptions bpe;
  std::unordered_map<std::string, uint32_t> ids;  // of the model's tokens, as they are written in the file
  std::vector<AddedToken> added;                  // content differs
  std::vector<int64_t> before, after;             // ids around every text
};

/// Throws InputError as load_tokenizer() says.
HuggingFaceParts read_hugging_face(const std::string& file);

/// As in load_tokenizer(). Throws InputError.
std::shared_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file);

}  // namespace meshtrain
