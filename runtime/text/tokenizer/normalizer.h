#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mesh/base/unicode/unicode.h"
#include "runtime/text/tokenizer/pattern.h"

namespace meshtrain {

/// Composes or decomposes.
struct FormStep {
  NormalForm form;
};

/// Removes White_Space from the ends.
struct StripStep {
  bool left = true, right = true;
};

/// Puts a text before any text but the empty one.
struct PrependStep {
  std::string text;
};

/// Replaces each match of a pattern.
struct ReplaceStep {
  Pattern pattern;
  std::string content;
};

using NormalizerStep = std::variant<FormStep, StripStep, PrependStep, ReplaceStep>;

/// The changes that a tokenizer.json makes to a text before it is cut into words, as the `tokenizers` package makes
/// them. Immutable:
/// any number of threads may use one at the same time.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps = {});

  /// Returns true only if apply() would not change `text`; cheap. May return false for a text that it does not change.
  bool surely_keeps(std::string_view text) const;
  /// Returns `text`, valid UTF-8, normalised.
  std::string apply(std::string_view text) const;

  /// Returns true when what is left of a text may not begin where the text begins.
  bool may_remove_beginning() const;

 private:
  std::vector<NormalizerStep> steps_;
  bool only_composes_ = true;  // every step, if any, is NFC
};

}  // namespace meshtrain
