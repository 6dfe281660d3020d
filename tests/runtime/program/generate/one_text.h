#pragma once

#include <functional>
#include <vector>

#include "runtime/program/generate/continuation.h"

namespace meshtrain::testing {

/// A continuation that has ended.
struct OneText {
  std::vector<int64_t> tokens;
  TextEnd end = TextEnd::Length;
};

/// Continues one prompt, the number `sequence` of its call. Every rank of a mesh without dp must call it. `on_token` is
/// called with each token.
inline OneText one_text(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                        const GenerateOptions& options, const std::function<void(int64_t)>& on_token = {}) {
  OneText text;
  Continuation continuation(model, prompt, sequence, options);
  while (!continuation.end()) {
    const std::optional<int64_t> token = continuation.advance();
    if (!token) continue;
    text.tokens.push_back(*token);
    if (on_token) on_token(*token);
  }
  text.end = *continuation.end();
  return text;
}

}  // namespace meshtrain::testing
