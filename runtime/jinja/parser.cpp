#include "runtime/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <system_error>

namespace meshtrain::jinja {
namespace {

constexpr int kDeepestParse = 400;       // calls of the functions that count a Level inside each other
constexpr int kDeepestExpression = 200;  // parts of an expression inside each other

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const FailAt& fail) : tokens_(std::move(tokens)), fail_(fail) {}

  Body parse_all() {
    Body body = parse_body({});
    return body;
  }

 private:
  using Kind = Token::Kind;

  const Token& now() const { return tokens_[next_]; }
  const Token& ahead() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  bool is_operator(std::string_view text) const { return now().kind == Kind::Operator && now().text == text; }
  bool is_word(std::string_view text) const { return now().kind == Kind::Name && now().text == text; }
  bool is_word(Words words) const {
    return std::ranges::any_of(words, [&](std::string_view word) { return is_word(word); });
  }
  [[noreturn]] void fail(const std::string& reason) const { fail_at(now().at, reason); }
  [[noreturn]] void fail_at(size_t at, const std::string& reason) const {
    fail_(at, reason);
    std::abort();  // fail_ throws
  }
  std::string shown() const {
    switch (now().kind) {
      case Kind::End:
        return "the end of the template";
      case Kind::Data:
        return "text";
      case Kind::BlockEnd:
        return "%}";
      case Kind::PrintEnd:
        return "}}";
      default:
        return "\"" + now().text + "\"";
    }
  }
  void advance() {
    if (next_ + 1 < tokens_.size()) ++next_;
  }
  bool skip(std::string_view text) {
    if (!is_operator(text)) return false;
    advance();
    return true;
  }
  bool skip_word(std::string_view text) {
    if (!is_word(text)) return false;
    advance();
    return true;
  }
  void expect(std::string_view text) {
    if (!skip(text)) fail("\"" + std::string(text) + "\" is expected, and here is " + shown());
  }
  void expect_word(std::string_view text) {
    if (!skip_word(text)) fail("\"" + std::string(text) + "\" is expected, and here is " + shown());
  }
  void expect(Kind kind, const char* needed) {
    if (now().kind != kind) fail(std::string(needed) + " is expected, and here is " + shown());
    advance();
  }
  std::string name() {
    if (now().kind != Kind::Name) fail("a name is expected, and here is " + shown());
    const std::string text = now().text;
    advance();
    return text;
  }

  /// Counts how deeply the parser calls itself.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser.level_ > kDeepestParse) parser.fail("the template is nested too deeply");
    }
    ~Level() { --parser_.level_; }

   private:
    Parser& parser_;
  };

  // --- Statements ---

  /// Parses up to a block that begins with one of `ends`, whose word is then the next token.
  Body parse_body(Words ends) {
    const Level level(*this);
    Body body;
    while (now().kind != Kind::End) {
      if (now().kind == Kind::Data) {
        auto data = statement(Statement::Kind::Data);
        data->text = now().text;
        advance();
        body.push_back(std::move(data));
      } else if (now().kind == Kind::PrintBegin) {
        advance();
        auto print = statement(Statement::Kind::Print);
        print->expression = parse_tuple();
        expect(Kind::PrintEnd, "}}");
        body.push_back(std::move(print));
      } else {
        advance();  // BlockBegin
        if (is_word(ends)) return body;
        body.push_back(parse_block());
      }
    }
    if (ends.size() > 0) {
      fail_at(open_.back().first, "the " + open_.back().second + " that begins here has no end");
    }
    return body;
  }

  /// Parses a body that one of `ends` ends, and skips this word. Returns the body and the word.
  std::pair<Body, std::string> body_until(Words ends) {
    Body body = parse_body(ends);
    return {std::move(body), name()};
  }

  Body block_body(std::string_view end) {
    expect(Kind::BlockEnd, "%}");
    Body body = parse_body({end});
    advance();
    return body;
  }

  std::unique_ptr<Statement> statement(Statement::Kind kind) const {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->at = now().at;
    return made;
  }

  std::unique_ptr<Statement> parse_block() {
    const size_t at = now().at;
    const std::string word = name();
    open_.emplace_back(at, word);
    std::unique_ptr<Statement> parsed = parse_block(at, word);
    parsed->at = at;
    open_.pop_back();
    expect(Kind::BlockEnd, "%}");
    return parsed;
  }

  std::unique_ptr<Statement> parse_block(size_t at, const std::string& word) {
    using S = Statement::Kind;
    if (word == "if") return parse_if();
    if (word == "for") return parse_for();
    if (word == "set") return parse_set();
    if (word == "macro") return parse_macro();
    if (word == "call") return parse_call_block();
    if (word == "with") return parse_with();
    if (word == "filter") {
      auto block = statement(S::FilterBlock);
      block->filter = parse_filters(nullptr, /*first_is_named=*/true);
      block->body = block_body("endfilter");
      return block;
    }
    if (word == "generation") {
      auto block = statement(S::Generation);
      block->body = block_body("endgeneration");
      return block;
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail_at(at, word + " stands outside of a loop");
      return statement(word == "break" ? S::Break : S::Continue);
    }
    for (const char* other : {"include", "import", "from", "extends", "block", "do", "autoescape", "trans"}) {
      if (word == other) fail_at(at, "{% " + word + " %} is not supported in chat templates");
    }
    fail_at(at, "{% " + word + " %} is no statement here");
  }

  std::unique_ptr<Statement> parse_if() {
    auto parsed = statement(Statement::Kind::If);
    ExpressionPtr condition = parse_tuple(/*with_choice=*/false);
    while (true) {
      expect(Kind::BlockEnd, "%}");
      auto [body, word] = body_until({"elif", "else", "endif"});
      parsed->branches.push_back({std::move(condition), std::move(body)});
      if (word == "endif") return parsed;
      if (word == "elif") {
        condition = parse_tuple(/*with_choice=*/false);
        continue;
      }
      parsed->branches.push_back({nullptr, block_body("endif")});
      return parsed;
    }
  }

  std::unique_ptr<Statement> parse_for() {
    auto parsed = statement(Statement::Kind::For);
    parsed->target = parse_target(/*may_be_attribute=*/false);
    expect_word("in");
    parsed->expression = parse_tuple(/*with_choice=*/false);
    if (skip_word("if")) parsed->condition = parse_expression();
    parsed->recursive = skip_word("recursive");
    expect(Kind::BlockEnd, "%}");
    ++loops_;
    auto [body, word] = body_until({"else", "endfor"});
    --loops_;
    parsed->body = std::move(body);
    if (word == "else") parsed->otherwise = block_body("endfor");
    return parsed;
  }

  std::unique_ptr<Statement> parse_set() {
    auto parsed = statement(Statement::Kind::Set);
    parsed->target = parse_target(/*may_be_attribute=*/true);
    if (skip("=")) {
      parsed->expression = parse_tuple();
      return parsed;
    }
    parsed->kind = Statement::Kind::SetBlock;
    if (is_operator("|")) parsed->filter = parse_filters(nullptr, /*first_is_named=*/false);
    parsed->body = block_body("endset");
    return parsed;
  }

  std::unique_ptr<Statement> parse_macro() {
    auto parsed = statement(Statement::Kind::Macro);
    parsed->text = name();
    parsed->parameters = parse_parameters();
    const int loops = std::exchange(loops_, 0);
    parsed->body = block_body("endmacro");
    loops_ = loops;
    return parsed;
  }

  std::vector<MacroParameter> parse_parameters() {
    std::vector<MacroParameter> parameters;
    expect("(");
    while (!is_operator(")")) {
      if (!parameters.empty()) expect(",");
      parameters.push_back({name(), nullptr});
      if (skip("=")) {
        parameters.back().initial = parse_expression();
      } else if (parameters.size() > 1 && parameters[parameters.size() - 2].initial) {
        fail("a parameter without a default stands behind one that has a default");
      }
    }
    expect(")");
    return parameters;
  }

  std::unique_ptr<Statement> parse_call_block() {
    auto parsed = statement(Statement::Kind::CallBlock);
    if (is_operator("(")) parsed->parameters = parse_parameters();
    parsed->expression = parse_expression();
    if (parsed->expression->kind != Expression::Kind::Call) fail("a call block needs a call");
    const int loops = std::exchange(loops_, 0);
    parsed->body = block_body("endcall");
    loops_ = loops;
    return parsed;
  }

  std::unique_ptr<Statement> parse_with() {
    auto parsed = statement(Statement::Kind::With);
    while (now().kind != Kind::BlockEnd) {
      if (!parsed->assignments.empty()) expect(",");
      Target target = parse_target(/*may_be_attribute=*/false);
      expect("=");
      parsed->assignments.emplace_back(std::move(target), parse_expression());
    }
    parsed->body = block_body("endwith");
    return parsed;
  }

  Target parse_target(bool may_be_attribute) {
    Target first = parse_one_target(may_be_attribute);
    if (!is_operator(",")) return first;
    Target all;
    all.targets.push_back(std::move(first));
    while (skip(",")) {
      if (now().kind != Kind::Name && !is_operator("(")) break;
      if (is_word("in")) break;
      all.targets.push_back(parse_one_target(/*may_be_attribute=*/false));
    }
    return all;
  }

  Target parse_one_target(bool may_be_attribute) {
    const Level level(*this);
    if (skip("(")) {
      Target inner = parse_target(false);
      expect(")");
      return inner;
    }
    Target target;
    const size_t at = now().at;
    target.name = name();
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) fail_at(at, "nothing can be assigned to " + target.name);
    }
    if (may_be_attribute && skip(".")) target.attribute = name();
    return target;
  }

  // --- Expressions ---

  ExpressionPtr make(Expression::Kind kind, size_t at, std::string text = {}) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->at = at;
    made->name = std::move(text);
    return made;
  }

  /// Adds a part and counts how deep the expression has become.
  void add(Expression& whole, ExpressionPtr part) const {
    if (part) whole.depth = std::max(whole.depth, part->depth + 1);
    if (whole.depth > kDeepestExpression) fail_at(whole.at, "the expression is nested too deeply");
    whole.parts.push_back(std::move(part));
  }

  template <class... Parts>
  ExpressionPtr join(Expression::Kind kind, size_t at, std::string text, Parts... parts) const {
    ExpressionPtr made = make(kind, at, std::move(text));
    (add(*made, std::move(parts)), ...);
    return made;
  }

  ExpressionPtr constant(Value value, size_t at) const {
    ExpressionPtr made = make(Expression::Kind::Constant, at);
    made->value = std::move(value);
    return made;
  }

  bool ends_tuple() const {
    return now().kind == Kind::PrintEnd || now().kind == Kind::BlockEnd || is_operator(")") || is_word("in") ||
           is_word("recursive");
  }

  /// Parses an expression, or several with commas between them, which are a tuple.
  ExpressionPtr parse_tuple(bool with_choice = true, bool in_brackets = false) {
    const size_t at = now().at;
    ExpressionPtr tuple = make(Expression::Kind::Tuple, at);
    bool is_tuple = false;
    while (!ends_tuple()) {
      add(*tuple, with_choice ? parse_expression() : parse_or());
      if (!skip(",")) break;
      is_tuple = true;
    }
    if (tuple->parts.empty() && !in_brackets) fail("an expression is expected, and here is " + shown());
    return is_tuple || tuple->parts.empty() ? std::move(tuple) : std::move(tuple->parts.front());
  }

  ExpressionPtr parse_expression() {
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

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (is_word("or")) {
      const size_t at = now().at;
      advance();
      left = join(Expression::Kind::Or, at, "", std::move(left), parse_and());
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (is_word("and")) {
      const size_t at = now().at;
      advance();
      left = join(Expression::Kind::And, at, "", std::move(left), parse_not());
    }
    return left;
  }

  ExpressionPtr parse_not() {
    const Level level(*this);
    const size_t at = now().at;
    if (skip_word("not")) return join(Expression::Kind::Not, at, "", parse_not());
    return parse_compare();
  }

  ExpressionPtr parse_compare() {
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

  template <class Operand>
  ExpressionPtr parse_binary(Words signs, const Operand& operand) {
    ExpressionPtr left = operand();
    while (now().kind == Kind::Operator && std::ranges::find(signs, now().text) != signs.end()) {
      const size_t at = now().at;
      const std::string sign = now().text;
      advance();
      left = join(Expression::Kind::Binary, at, sign, std::move(left), operand());
    }
    return left;
  }

  ExpressionPtr parse_sum() {
    return parse_binary({"+", "-"}, [this] { return parse_concat(); });
  }

  ExpressionPtr parse_concat() {
    const size_t at = now().at;
    ExpressionPtr first = parse_product();
    if (!is_operator("~")) return first;
    ExpressionPtr all = join(Expression::Kind::Concat, at, "", std::move(first));
    while (skip("~")) add(*all, parse_product());
    return all;
  }

  ExpressionPtr parse_product() {
    return parse_binary({"*", "/", "//", "%"},
                        [this] { return parse_binary({"**"}, [this] { return parse_unary(true); }); });
  }

  ExpressionPtr parse_unary(bool with_filters) {
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

  ExpressionPtr parse_primary() {
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
    fail("an expression is expected, and here is " + shown());
  }

  int64_t whole_number(std::string text, size_t at) const {
    int base = 10;
    if (text.size() > 1 && text[0] == '0' && std::isalpha(static_cast<unsigned char>(text[1])) != 0) {
      base = text[1] == 'x' || text[1] == 'X' ? 16 : text[1] == 'o' || text[1] == 'O' ? 8 : 2;
      text = text.substr(2);
    }
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (error != std::errc() || end != text.data() + text.size()) fail_at(at, "this is no whole number of 64 bits");
    return number;
  }

  ExpressionPtr parse_list(size_t at) {
    ExpressionPtr list = make(Expression::Kind::List, at);
    while (!is_operator("]")) {
      if (!list->parts.empty()) expect(",");
      if (is_operator("]")) break;
      add(*list, parse_expression());
    }
    expect("]");
    return list;
  }

  ExpressionPtr parse_dict(size_t at) {
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

  ExpressionPtr parse_postfix(ExpressionPtr value) {
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

  ExpressionPtr parse_item(ExpressionPtr value, size_t at) {
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

  /// Parses "(...)" into the arguments of a call, a filter or a test.
  void parse_arguments(Expression& call) {
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
        if (!call.named.empty()) fail("a positional argument stands behind a named one");
        call.positional.push_back(parse_expression());
        count(call.positional.back());
      }
    }
    expect(")");
  }

  std::string dotted_name() {
    std::string text = name();
    while (skip(".")) text += "." + name();
    return text;
  }

  /// Parses filters, tests and calls behind a value. `first_is_named`: a filter's name comes first, without its sign.
  ExpressionPtr parse_filters(ExpressionPtr value, bool first_is_named) {
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

  ExpressionPtr parse_test(ExpressionPtr value, size_t at) {
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

  std::vector<Token> tokens_;
  const FailAt& fail_;
  size_t next_ = 0;
  int level_ = 0;
  int loops_ = 0;
  std::vector<std::pair<size_t, std::string>> open_;  // blocks that have not ended
};

}  // namespace

Body parse(const std::string& source, const FailAt& fail) {
  return Parser(tokenize(source, fail), fail).parse_all();
}

}  // namespace meshtrain::jinja
