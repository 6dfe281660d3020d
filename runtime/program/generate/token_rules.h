#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

/// Rules that change the logits of the next token by the tokens before it, with the names and the arithmetic of
/// transformers' LogitsProcessors.
struct TokenRules {
  double repetition_penalty = 1;     ///< divides positive logits of tokens that the text has, multiplies negative ones
  int64_t no_repeat_ngram_size = 0;  ///< no run of that many tokens occurs twice; 0: any may
  std::vector<std::vector<int64_t>> bad_words_ids = {};  ///< runs of tokens that do not occur, one token or more each;
                                                         ///< a token that ends texts alone is allowed all the same
  int64_t min_length = 0;      ///< tokens that a text has, its prompt included, before one may end it
  int64_t min_new_tokens = 0;  ///< the same without the prompt

  /// Returns true when there is any rule.
  bool any() const {
    return repetition_penalty != 1 || no_repeat_ngram_size > 0 || !bad_words_ids.empty() || min_length > 0 ||
           min_new_tokens > 0;
  }
};

/// Applies `rules` to the logits `scores` [V] of the token that follows `text`, the first `prompt` of whose tokens were
/// given; an excluded token gets minus infinity. `stop`: the tokens that end a text. The rules come in transformers'
/// order: penalty, runs, bad words, lengths.
void apply(const TokenRules& rules, const std::vector<int64_t>& text, int64_t prompt, const std::vector<int64_t>& stop,
           std::vector<double>& scores);

}  // namespace meshtrain
