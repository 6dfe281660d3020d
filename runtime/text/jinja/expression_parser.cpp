#include "runtime/text/jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

namespace meshtrain::jinja {
namespace {

constexpr int kDeepestExpression = 200;  // parts of an expression inside each other

}  // namespace

ExpressionPtr ExpressionParser::make(Expression::Kind kind, size_t at, std::string text) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->at = at;
  made->name = std::move(text);
  return made;
}

void ExpressionParser::add(Expression& whole, ExpressionPtr part) const {
  if (part) whole.depth = std::max(whole.depth, part->depth + 1);
  if (whole.depth > kDeepestExpression) fail_at(whole.at, "the expression is nested too deeply");
  whole.parts.push_back(std::move(part));
}

ExpressionPtr ExpressionParser::constant(Value value, size_t at) const {
  ExpressionPtr made = make(Expression::Kind::Constant, at);
  made->value = std::move(value);
  return made;
}

bool ExpressionParser::ends_tuple() const {
  return now().kind == Kind::PrintEnd || now().kind == Kind::BlockEnd || is_operator(")") || is_word("in") ||
         is_word("recursive");
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_choice, bool in_brackets) {
  const size_t at = now().at;
  ExpressionPtr tuple = make(Expression::Kind::Tuple, at);
  bool is_tuple = false;
  while (!ends_tuple()) {
    add(*tuple, with_choice ? parse_expression() : parse_or());
    if (!skip(",")) break;
    is_tuple = true;
  }
  if (tuple->parts.empty() && !in_brackets) fail("an expression is expected, but here is " + shown());
  return is_tuple || tuple->parts.empty() ? std::move(tuple) : std::move(tuple->parts.front());
}

ExpressionPtr ExpressionParser::parse_expression() {
  const Level level(*this);
  ExpressionPtr value = parse_or();
  while (is_word("if")) {
    const size_t at = now().at;
    advance();
    ExpressionPtr condition = parse_or();
    ExpressionPtr other = skip_word("else") ? parse_expression() : nullptr;
    value = join(Expression::Kind::Choice, at, "", std::move(value), std::move(condition), std::move(other));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  return parse_binary(
      {"or"}, [this] { return parse_and(); }, Expression::Kind::Or);
}

ExpressionPtr ExpressionParser::parse_and() {
  return parse_binary(
      {"and"}, [this] { return parse_not(); }, Expression::Kind::And);
}

ExpressionPtr ExpressionParser::parse_not() {
  const Level level(*this);
  const size_t at = now().at;
  if (skip_word("not")) return join(Expression::Kind::Not, at, "", parse_not());
  return parse_compare();
}

ExpressionPtr ExpressionParser::parse_compare() {
  const size_t at = now().at;
  ExpressionPtr compared = make(Expression::Kind::Compare, at);
  add(*compared, parse_sum());
  while (true) {
    std::string sign;
    for (const char* candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (is_operator(candidate)) sign = candidate;
    }
    if (is_word("in")) sign = "in";
    if (is_word("not") && ahead().kind == Kind::Name && ahead().text == "in") {
      sign = "not in";
      advance();
    }
    if (sign.empty()) break;
    advance();
    compared->names.push_back(sign);
    add(*compared, parse_sum());
  }
  return compared->names.empty() ? std::move(compared->parts.front()) : std::move(compared);
}

ExpressionPtr ExpressionParser::parse_sum() {
  return parse_binary({"+", "-"}, [this] { return parse_concat(); });
}

ExpressionPtr ExpressionParser::parse_concat() {
  const size_t at = now().at;
  ExpressionPtr first = parse_product();
  if (!is_operator("~")) return first;
  ExpressionPtr all = join(Expression::Kind::Concat, at, "", std::move(first));
  while (skip("~")) add(*all, parse_product());
  return all;
}

ExpressionPtr ExpressionParser::parse_product() {
  return parse_binary({"*", "/", "//", "%"}, [this] { return parse_unary(true); });
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const Level level(*this);
  const size_t at = now().at;
  ExpressionPtr value;
  if (skip("-")) {
    value = join(Expression::Kind::Negative, at, "", parse_unary(false));
  } else if (skip("+")) {
    value = join(Expression::Kind::Positive, at, "", parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value), false) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Level level(*this);
  const size_t at = now().at;
  const std::string text = now().text;
  switch (now().kind) {
    case Kind::Name:
      advance();
      if (text == "true" || text == "True") return constant(true, at);
      if (text == "false" || text == "False") return constant(false, at);
      if (text == "none" || text == "None") return constant(None{}, at);
      return make(Expression::Kind::Name, at, text);
    case Kind::String: {
      std::string all;
      for (; now().kind == Kind::String; advance()) all += now().text;
      return constant(Value::text(all), at);
    }
    case Kind::Whole:
      advance();
      return constant(whole_number(text, at), at);
    case Kind::Float:
      advance();
      return constant(std::strtod(text.c_str(), nullptr), at);
    default:
      break;
  }
  if (skip("(")) {
    ExpressionPtr inner = parse_tuple(/*with_choice=*/true, /*in_brackets=*/true);
    expect(")");
    return inner;
  }
  if (skip("[")) return parse_list(at);
  if (skip("{")) return parse_dict(at);
  fail("an expression is expected, but here is " + shown());
}

int64_t ExpressionParser::whole_number(const std::string& text, size_t at) const {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) fail_at(at, "this whole number has more than 64 bits");
  return number;
}

ExpressionPtr ExpressionParser::parse_list(size_t at) {
  ExpressionPtr list = make(Expression::Kind::List, at);
  while (!is_operator("]")) {
    if (!list->parts.empty()) expect(",");
    if (is_operator("]")) break;
    add(*list, parse_expression());
  }
  expect("]");
  return list;
}

ExpressionPtr ExpressionParser::parse_dict(size_t at) {
  ExpressionPtr dict = make(Expression::Kind::Dict, at);
  while (!is_operator("}")) {
    if (!dict->parts.empty()) expect(",");
    if (is_operator("}")) break;
    add(*dict, parse_expression());
    expect(":");
    add(*dict, parse_expression());
  }
  expect("}");
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    const size_t at = now().at;
    if (skip(".")) {
      if (now().kind == Kind::Whole) {
        ExpressionPtr index = constant(whole_number(now().text, now().at), now().at);
        advance();
        value = join(Expression::Kind::Item, at, "", std::move(value), std::move(index));
      } else {
        value = join(Expression::Kind::Attribute, at, name(), std::move(value));
      }
    } else if (skip("[")) {
      value = parse_item(std::move(value), at);
    } else if (is_operator("(")) {
      value = join(Expression::Kind::Call, at, "", std::move(value));
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_item(ExpressionPtr value, size_t at) {
  ExpressionPtr bounds[3];
  if (!is_operator(":")) bounds[0] = parse_expression();
  if (skip("]")) return join(Expression::Kind::Item, at, "", std::move(value), std::move(bounds[0]));
  for (int i = 1; i < 3 && skip(":"); ++i) {
    if (!is_operator(":") && !is_operator("]")) bounds[i] = parse_expression();
  }
  expect("]");
  return join(Expression::Kind::Slice, at, "", std::move(value), std::move(bounds[0]), std::move(bounds[1]),
              std::move(bounds[2]));
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect("(");
  bool first = true;
  const auto count = [&](const ExpressionPtr& part) {
    call.depth = std::max(call.depth, part->depth + 1);
    if (call.depth > kDeepestExpression) fail_at(call.at, "the expression is nested too deeply");
  };
  while (!is_operator(")")) {
    if (!std::exchange(first, false)) expect(",");
    if (is_operator(")")) break;
    if (is_operator("*") || is_operator("**")) fail("* and ** in arguments are not supported");
    if (now().kind == Kind::Name && ahead().kind == Kind::Operator && ahead().text == "=") {
      std::string key = name();
      advance();
      call.named.emplace_back(std::move(key), parse_expression());
      count(call.named.back().second);
    } else {
      if (!call.named.empty()) fail("a positional argument follows a named one");
      call.positional.push_back(parse_expression());
      count(call.positional.back());
    }
  }
  expect(")");
}

std::string ExpressionParser::dotted_name() {
  std::string text = name();
  while (skip(".")) text += "." + name();
  return text;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value, bool first_is_named) {
  while (true) {
    const size_t at = now().at;
    if (first_is_named || skip("|")) {
      first_is_named = false;
      value = join(Expression::Kind::Filter, at, dotted_name(), std::move(value));
      if (is_operator("(")) parse_arguments(*value);
    } else if (value && skip_word("is")) {
      value = parse_test(std::move(value), at);
    } else if (value && is_operator("(")) {
      value = join(Expression::Kind::Call, at, "", std::move(value));
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value, size_t at) {
  const bool negated = skip_word("not");
  ExpressionPtr test = join(Expression::Kind::Test, at, dotted_name(), std::move(value));
  const bool is_value = now().kind == Kind::Name || now().kind == Kind::String || now().kind == Kind::Whole ||
                        now().kind == Kind::Float || is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    parse_arguments(*test);
  } else if (is_value && !is_word({"else", "or", "and", "if", "is", "in", "not", "recursive"})) {
    test->positional.push_back(parse_postfix(parse_primary()));
    test->depth = std::max(test->depth, test->positional.back()->depth + 1);
  }
  return negated ? join(Expression::Kind::Not, at, "", std::move(test)) : std::move(test);
}

}  // namespace meshtrain::jinja
