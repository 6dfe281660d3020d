#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/pattern.h"

namespace meshtrain {

/// The treatment of matches, under the names of the `tokenizers` package.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

/// Cuts where a pattern matches, or everywhere else when inverted.
struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;
};

/// Cuts around digits, around each or around runs of them.
struct DigitsStep {
  bool individual = false;
};

/// Puts a space before a text that does not begin with one.
struct PrefixSpaceStep {};

using PreTokenizerStep = std::variant<SplitStep, DigitsStep, PrefixSpaceStep>;

/// A cutter of text into words, step by step: each step cuts every piece that the step before it has left.
class PreTokenizer {
 public:
  /// The buffers of one split(), kept for the next.
  struct Scratch {
    std::vector<std::string_view> words;

   private:
    friend class PreTokenizer;
    struct Span {
      std::string_view text;
      bool match = false;
    };
    std::vector<std::string_view> pieces;
    std::vector<Span> spans;
    std::deque<std::string> prefixed;
    Pattern::Alternatives alternatives;
  };

  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  /// Stores the words of `text`, valid UTF-8, in scratch.words; they are views of the text or of scratch.
  void split(std::string_view text, Scratch& scratch) const;

 private:
  static void cut(const SplitStep& step, std::string_view text, Scratch& scratch);
  static void cut(const DigitsStep& step, std::string_view text, Scratch& scratch);
  static void cut(const PrefixSpaceStep& step, std::string_view text, Scratch& scratch);
  static void keep(SplitBehavior behavior, Scratch& scratch);

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace meshtrain
