#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// A search for strings that end a text, as its tokens come. As in transformers a string may begin in the prompt or
/// within a token, and end within the last token, whose text stays complete; special tokens have their text.
class StopStrings {
 public:
  /// `strings`: one or more, none of them empty. `prompt`: the tokens before the first added one. `tokenizer` must
  /// outlive this object.
  StopStrings(const Tokenizer& tokenizer, std::vector<std::string> strings, const std::vector<int64_t>& prompt);

  /// Adds a token. Returns true when one of the strings ends within its text.
  bool add(int64_t token);

 private:
  /// Returns the bytes of a token within a text: the first word of a SentencePiece text would lose its space.
  std::string bytes_of(int64_t token) const;

  const Tokenizer& tokenizer_;
  std::vector<std::string> strings_;
  std::vector<int64_t> base_;  // tokens of some text, before a token that is decoded
  size_t base_bytes_;
  size_t longest_;
  std::string tail_;  // the last bytes of the text, fewer than the longest string has
};

}  // namespace meshtrain
