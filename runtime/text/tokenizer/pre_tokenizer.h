#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/text/tokenizer/pattern.h"

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

/// Cuts at each space (White_Space) or punctuation character.
struct CharactersStep {
  bool (*is_match)(uint32_t code_point);
  SplitBehavior behavior = SplitBehavior::Isolated;
};

/// Keeps runs of word characters, and runs of what is neither these nor a space.
struct WordsStep {};

/// Replaces spaces (U+0020), may put the replacement before a text that does not begin with it, and may cut before
/// each.
struct MetaspaceStep {
  enum class Prepend { Always, First, Never };  ///< First: only at the beginning of the complete text
  std::string replacement;
  Prepend prepend = Prepend::Always;
  bool split = true;
};

using PreTokenizerStep = std::variant<SplitStep, DigitsStep, PrefixSpaceStep, CharactersStep, WordsStep, MetaspaceStep>;

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
    const char* beginning = nullptr;  // of the complete text; nullptr when this is not its first piece
  };

  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  /// Stores the words of `text`, valid UTF-8, in scratch.words; they are views of the text or of scratch. `is_first`:
  /// nothing of the complete text is before `text`.
  void split(std::string_view text, bool is_first, Scratch& scratch) const;

 private:
  static void cut(const SplitStep& step, std::string_view text, Scratch& scratch);
  static void cut(const DigitsStep& step, std::string_view text, Scratch& scratch);
  static void cut(const PrefixSpaceStep& step, std::string_view text, Scratch& scratch);
  static void cut(const CharactersStep& step, std::string_view text, Scratch& scratch);
  static void cut(const WordsStep& step, std::string_view text, Scratch& scratch);
  static void cut(const MetaspaceStep& step, std::string_view text, Scratch& scratch);
  /// Stores a span for each character that `take_match` accepts and moves past, and for the text between.
  template <class TakeMatch>
  static void cut_characters(const TakeMatch& take_match, std::string_view text, Scratch& scratch);
  static void keep(SplitBehavior behavior, Scratch& scratch);

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace meshtrain
