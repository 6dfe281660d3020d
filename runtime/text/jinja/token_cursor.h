#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/lexer.h"

namespace meshtrain::jinja {

/// The tokens of a template and the one that is parsed now. Functions that fail call `fail`, which throws, with where
/// they are.
class TokenCursor {
 protected:
  using Kind = Token::Kind;
  using Words = std::initializer_list<std::string_view>;

  /// `fail` has to outlive the cursor.
  TokenCursor(std::vector<Token> tokens, const FailAt& fail) : tokens_(std::move(tokens)), fail_(fail) {}

  const Token& now() const { return tokens_[next_]; }
  const Token& ahead() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  bool is_operator(std::string_view text) const { return now().kind == Kind::Operator && now().text == text; }
  bool is_word(std::string_view text) const { return now().kind == Kind::Name && now().text == text; }
  bool is_word(Words words) const {
    return std::ranges::any_of(words, [&](std::string_view word) { return is_word(word); });
  }
  [[noreturn]] void fail(const std::string& reason) const { fail_at(now().at, reason); }
  [[noreturn]] void fail_at(size_t at, const std::string& reason) const;
  /// Returns the token as messages show it.
  std::string shown() const;

  void advance();
  /// Advance when the token is that operator or word. Return whether it was.
  bool skip(std::string_view text);
  bool skip_word(std::string_view text);
  /// Advance past a token. Fail when another one is here.
  void expect(std::string_view text);
  void expect_word(std::string_view text);
  void expect(Kind kind, const char* needed);
  /// Returns the name that is here, and advances.
  std::string name();

  /// Counts how deeply a parser calls itself.
  class Level {
   public:
    explicit Level(TokenCursor& cursor);
    ~Level() { --cursor_.level_; }

   private:
    TokenCursor& cursor_;
  };

 private:
  std::vector<Token> tokens_;
  const FailAt& fail_;
  size_t next_ = 0;
  int level_ = 0;
};

}  // namespace meshtrain::jinja
