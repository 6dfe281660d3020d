#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {

/// The text of tokens as they come, in whole characters: a token may end within one, and SentencePiece has words begin
/// with their space. Special tokens stand for nothing. Bytes that become no UTF-8 are U+FFFD, one for each maximal part
/// of a character.
class TextStream {
 public:
  /// `before`: the tokens that these come behind, whose text is not repeated. `tokenizer` outlives this.
  TextStream(const Tokenizer& tokenizer, const std::vector<int64_t>& before);

  /// What of the text is certain with one more token.
  std::string add(int64_t id);
  /// The rest: no token comes any more.
  std::string finish();

 private:
  std::string settle(bool last);

  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;  // the end of what has been said, and all since
  size_t num_said_;           // the first so many of ids_, whose text has gone to bytes_
  std::string bytes_;         // of tokens that have been said, the beginning of a character
};

}  // namespace meshtrain
