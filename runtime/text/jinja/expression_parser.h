#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/text/jinja/syntax.h"
#include "runtime/text/jinja/token_cursor.h"

namespace meshtrain::jinja {

/// The parser of expressions, with Jinja's precedence. A parser of statements is one with more.
class ExpressionParser : protected TokenCursor {
 protected:
  using TokenCursor::TokenCursor;

  /// Parses an expression, or several with commas between them, which are a tuple.
  ExpressionPtr parse_tuple(bool with_choice = true, bool in_brackets = false);
  ExpressionPtr parse_expression();
  /// Parses filters, tests and calls after a value. `first_is_named`: a filter's name comes first, without its sign.
  ExpressionPtr parse_filters(ExpressionPtr value, bool first_is_named);

 private:
  ExpressionPtr make(Expression::Kind kind, size_t at, std::string text = {}) const;
  /// Adds a part and counts how deep the expression has become.
  void add(Expression& whole, ExpressionPtr part) const;
  template <class... Parts>
  ExpressionPtr join(Expression::Kind kind, size_t at, std::string text, Parts... parts) const {
    ExpressionPtr made = make(kind, at, std::move(text));
    (add(*made, std::move(parts)), ...);
    return made;
  }
  ExpressionPtr constant(Value value, size_t at) const;
  bool ends_tuple() const;
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  template <class Operand>
  ExpressionPtr parse_binary(Words signs, const Operand& operand, Expression::Kind kind = Expression::Kind::Binary) {
    ExpressionPtr left = operand();
    const auto is_sign = [&] { return now().kind == Kind::Operator || now().kind == Kind::Name; };
    while (is_sign() && std::ranges::find(signs, now().text) != signs.end()) {
      const size_t at = now().at;
      const std::string sign = now().text;
      advance();
      left = join(kind, at, sign, std::move(left), operand());
    }
    return left;
  }
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  int64_t whole_number(const std::string& text, size_t at) const;
  ExpressionPtr parse_list(size_t at);
  ExpressionPtr parse_dict(size_t at);
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_item(ExpressionPtr value, size_t at);
  /// Parses "(...)" into the arguments of a call, a filter or a test.
  void parse_arguments(Expression& call);
  std::string dotted_name();
  ExpressionPtr parse_test(ExpressionPtr value, size_t at);
};

}  // namespace meshtrain::jinja
