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
  /// Returns true when the text ends with this token, for a reason besides `stop`. Called with each token, in order, on
  /// every tp rank, and must return the same there; it may be collective over them.
  std::function<bool(int64_t token)> ends_text = {};
};

/// The reason for which a text ended: it has max_tokens, a token of `stop`, or ends_text said so.
enum class TextEnd { Length, Token, Text };

/// A prompt and its continuation, which grows by one forward of the model at a time. The tokens depend on model, prompt
/// and options, seed included, and on the mesh only as far as rounding does.
class Continuation {
 public:
  /// `prompt`: at least one id, each below the model's vocab_size. `sequence`: the prompt's number among those of one
  /// call, for random draws. `model` must outlive this.
  Continuation(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence, GenerateOptions options);

  /// Makes one LanguageModel::next(). Returns the token that it led to; none when a part of the prompt is left. Every
  /// tp rank must call it and gets the same token. Throws AgreedError, on all of them, when logits are not finite, and
  /// when the rules exclude every token. Call it until end() has a value.
  std::optional<int64_t> advance();

  /// Returns why the text has ended; none when it has not.
  const std::optional<TextEnd>& end() const { return end_; }

 private:
  int64_t choose(const VocabularyLogits& logits) const;
  /// Returns the reason for which a text that has `token` as its last one ends, if it does.
  std::optional<TextEnd> end_at(int64_t token) const;

  LanguageModel& model_;
  GenerateOptions options_;
  uint64_t sequence_;
  std::vector<int64_t> text_;  // the prompt and the tokens after it
  size_t prompt_;              // tokens of the prompt
  KeyValueCache cache_;
  std::optional<TextEnd> end_;
};

}  // namespace meshtrain
