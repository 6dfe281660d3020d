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
class Pattern {
 public:
  /// The places that a search may go back to; one for each thread, kept so that its memory is.
  struct Place {
    uint32_t instruction;
    const char* at;
    const char* low;  // of a loop: how far it may give back; nullptr otherwise
  };
  using Places = std::vector<Place>;

  /// Throws InputError, without a file name, when the expression is malformed, uses something else, or can match the
  /// empty text.
  explicit Pattern(std::string_view expression);
  ~Pattern();
  Pattern(Pattern&&) noexcept;

  /// The expression that finds `text` itself.
  static Pattern literal(std::string_view text);

  const std::string& expression() const { return expression_; }

  /// The first match in `text`, valid UTF-8, at or behind `from`: an empty view at its end when there is none.
  /// Lookahead sees all of `text`. Throws InputError when one match takes more than ten million steps back.
  std::string_view find(std::string_view text, size_t from, Places& places) const;

 private:
  class Search;
  std::string expression_;
  std::unique_ptr<const PatternProgram> program_;
};

}  // namespace meshtrain
