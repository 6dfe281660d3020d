#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

struct PatternProgram;

/// A regular expression, in the part of Oniguruma's language that tokenizers use and with its meaning in the
/// `tokenizers` package: literals, escapes (\r \n \t \f \v \xHH \x{H...}), ., \s \d \p{..} of general categories and
/// their negations, classes with ranges, groups, (?i:ASCII), lookahead, |, ? * + {n,m} and the lazy ?? *? +? and
/// possessive ?+ *+ ++. Immutable: any number of threads may match at the same time.
///
/// Oniguruma itself is not used: Debian's (libonig 6.9.8) has Unicode 14 where the package has 16, and cuts 81 of 345
/// compared texts differently. With the package's tables written into its patterns it is 1.7 to 4 times as slow.
class Pattern {
 public:
  /// A state to which a search may backtrack.
  struct Alternative {
    uint32_t instruction;
    const char* at;
    const char* low;  // of a loop: the end of its least match; nullptr otherwise
    bool is_long;     // many positions to try: those that have failed before are left out
  };
  /// Findings of the searches in one text. Each thread needs its own, and keeps it to allocate nothing again.
  struct Alternatives {
    /// Bytes of the text, or positions in it, from `begin` to `end`.
    struct Stretch {
      const char *begin = nullptr, *end = nullptr;
    };
    std::vector<Alternative> states;
    std::vector<Stretch> runs;    // [instruction]: a loop's code points, without the end, found last
    std::vector<Stretch> failed;  // [instruction]: positions, `end` too, at which no match continues with it
    const void* program = nullptr;
    std::string_view text;
    size_t steps = 0;    // backtracking steps in the text so far
    size_t scanned = 0;  // code points that loops have read so far
  };

  /// Compiles `expression`. Throws InputError, without a file name, when the expression is malformed, uses something
  /// else, or can match the empty text.
  explicit Pattern(std::string_view expression);
  ~Pattern();
  Pattern(Pattern&&) noexcept;

  /// Returns the pattern that matches `text` itself.
  static Pattern literal(std::string_view text);

  const std::string& expression() const { return expression_; }

  /// Returns the first match in `text`, valid UTF-8, that begins at `from` or after it: an empty view at the end of
  /// `text` when there is none. Lookahead sees all of `text`. The first search in a text begins at 0; later ones take
  /// over what it has found out, so that a text with a long run of spaces takes time in proportion to its length.
  /// Throws InputError when a text takes more than ten million backtracking steps and 64 for each of its bytes.
  std::string_view find(std::string_view text, size_t from, Alternatives& alternatives) const;

 private:
  class Search;
  std::string expression_;
  std::unique_ptr<const PatternProgram> program_;
};

}  // namespace meshtrain
