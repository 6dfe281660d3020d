#pragma once

#include <memory>
#include <string>

#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// Loads a SentencePiece model. `begin`: encode() puts the model's token for the beginning before each text. Throws
/// InputError when the file cannot be read or is not such a model.
std::shared_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& file, bool begin);

}  // namespace meshtrain
