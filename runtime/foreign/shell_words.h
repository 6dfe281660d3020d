#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace meshtrain {

/// A word of a script as it is written, with its quotes, or an operator: "\n", ";", "||", "(".
struct ShellToken {
  std::string text;
  bool is_operator = false;
  int line = 1;
};

/// Cuts `text` into words and operators: without comments, joined lines as one.
std::vector<ShellToken> shell_tokens(const std::string& text);

/// Cuts `text` at blanks and line breaks.
std::vector<std::string> split_at_blanks(const std::string& text);

/// The variables of a script. A plain one has one element, an array any number.
class ShellVariables {
 public:
  void set(const std::string& name, std::vector<std::string> elements) { values_[name] = std::move(elements); }
  void append(const std::string& name, const std::vector<std::string>& elements, bool as_text);

  /// Returns the words that `word` becomes: without quotes, variables replaced, values outside quotes cut at blanks.
  /// Leaves as it is written what is not known: $1, $(hostname).
  std::vector<std::string> expand(const std::string& word) const;

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace meshtrain
