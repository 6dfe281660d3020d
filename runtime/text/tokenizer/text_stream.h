#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// A decoder of tokens as they come, which returns complete characters: a token may end within one, and SentencePiece
/// words begin with their space. Special tokens have no text. Bytes that are not UTF-8 become U+FFFD, one for each
/// maximal part of a character.
class TextStream {
 public:
  /// `before`: the tokens before the first added one; their text is not repeated. `tokenizer` must outlive this object.
  TextStream(const Tokenizer& tokenizer, const std::vector<int64_t>& before);

  /// Adds a token and returns the text that is certain with it.
  std::string add(int64_t id);
  /// Returns the remaining text. No token may be added any more.
  std::string finish();

 private:
  std::string settle(bool last);

  bool is_special(int64_t id) const;

  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;  // the last tokens with text that were decoded, as context, and all of these since
  size_t num_decoded_ = 0;    // how many of ids_, from the first, were decoded
  std::string bytes_;         // decoded bytes that were not returned yet: the beginning of a character
};

}  // namespace meshtrain
