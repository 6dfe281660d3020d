#include "runtime/text/jinja/parser.h"

#include <utility>

#include "runtime/text/jinja/expression_parser.h"

namespace meshtrain::jinja {
namespace {

/// The parser of statements.
class Parser : ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, const FailAt& fail) : ExpressionParser(std::move(tokens), fail) {}

  Body parse_all() { return parse_body({}); }

 private:
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
      if (loops_ == 0) fail_at(at, word + " is outside a loop");
      return statement(word == "break" ? S::Break : S::Continue);
    }
    for (const char* other : {"include", "import", "from", "extends", "block", "do", "autoescape", "trans", "with"}) {
      if (word == other) fail_at(at, "{% " + word + " %} is not supported in chat templates");
    }
    fail_at(at, "{% " + word + " %} is not a statement here");
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
    if (is_word("recursive")) fail("recursive loops are not supported in chat templates");
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
        fail("a parameter without a default follows one that has a default");
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

  int loops_ = 0;
  std::vector<std::pair<size_t, std::string>> open_;  // blocks that have not ended
};

}  // namespace

Body parse(const std::string& source, const FailAt& fail) {
  return Parser(tokenize(source, fail), fail).parse_all();
}

}  // namespace meshtrain::jinja
