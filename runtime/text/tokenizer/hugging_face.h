#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/text/tokenizer/added_tokens.h"
#include "runtime/text/tokenizer/bpe.h"
#include "runtime/text/tokenizer/decoder.h"
#include "runtime/text/tokenizer/json_cursor.h"
#include "runtime/text/tokenizer/normalizer.h"
#include "runtime/text/tokenizer/pre_tokenizer.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// The content of a tokenizer.json.
struct HuggingFaceParts {
  Normalizer normalizer;
  bool is_byte_level = false;
  std::vector<PreTokenizerStep> steps;
  BpeOptions bpe;
  std::unordered_map<std::string, uint32_t> ids;  // by the model's tokens, as the file spells them
  std::vector<AddedToken> added;                  // no two with the same content
  std::string beside;                             // changes of `added` by the files next to it; empty: none
  std::vector<int64_t> before, after;             // ids around every text
  std::vector<DecodingStep> decoding;
};

/// Read the normalizer, the pre_tokenizer, and under `root` the decoder of a tokenizer.json into `parts`, in this
/// order. Throw InputError as load_tokenizer() does.
void read_normalizer(const JsonCursor& normalizer, HuggingFaceParts& parts);
void read_pre_tokenizer(const JsonCursor& pre_tokenizer, HuggingFaceParts& parts);
void read_decoder(const JsonCursor& root, HuggingFaceParts& parts);

/// Throws InputError for a Sequence within more than 20 others.
void refuse_deep(const JsonCursor& at, int depth);

/// Reads a tokenizer.json and the tokens in the files beside it (read_config_tokens()). Throws InputError as
/// load_tokenizer() does.
HuggingFaceParts read_hugging_face(const std::string& file);

/// Makes the tokenizer of a tokenizer.json. Throws InputError as load_tokenizer() does.
std::shared_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file);

}  // namespace meshtrain
