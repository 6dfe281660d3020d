#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/program/generate/language_model.h"
#include "runtime/program/generate/sampling.h"
#include "runtime/program/generate/token_rules.h"

namespace meshtrain {

struct GenerateOptions {
  int64_t max_tokens = 128;        ///< at least 1
  std::vector<int64_t> stop = {};  ///< tokens that end a text
  SamplingOptions sampling = {};
  int64_t prefill_tokens = 512;  ///< tokens of a prompt in one forward: bounds memory, does not change the result
  TokenRules rules = {};
  /// Returns true when the text ends with this token, for a reason other than `stop`. Every tp rank calls it with each
  /// token in order. It must return the same on all of them, and may be collective over them.
  std::function<bool(int64_t token)> ends_text = {};
};

/// The reason for which a text ended: it has max_tokens, a token of `stop`, or ends_text said so.
enum class TextEnd { Length, Token, Text };

/// A prompt and its continuation, which grows by one forward of the model at a time. The tokens depend on the model,
/// the prompt and the options, including the seed; the mesh changes only their rounding.
class Continuation {
 public:
  /// `prompt`: at least one id, each below the model's vocab_size. `sequence`: the prompt's number in its call, for
  /// random draws. `model` must outlive this.
  Continuation(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence, GenerateOptions options);

  /// Calls LanguageModel::next() once. Returns the chosen token; none when a part of the prompt is left. Every tp rank
  /// must call it and gets the same token. Throws AgreedError on all tp ranks when logits are not finite or the rules
  /// exclude every token. Call it until end() has a value.
  std::optional<int64_t> advance();

  /// Returns why the text has ended; none when it has not.
  const std::optional<TextEnd>& end() const { return end_; }

 private:
  int64_t choose(const VocabularyLogits& logits) const;
  /// Returns the reason why a text ends whose last token is `token`; none when the text continues.
  std::optional<TextEnd> end_at(int64_t token) const;

  LanguageModel& model_;
  GenerateOptions options_;
  uint64_t sequence_;
  std::vector<int64_t> text_;  // the prompt and the tokens after it
  size_t prompt_;              // number of tokens in the prompt
  KeyValueCache cache_;
  std::optional<TextEnd> end_;
};

}  // namespace meshtrain
