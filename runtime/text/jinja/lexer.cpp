#include "runtime/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "mesh/base/unicode/utf8.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

constexpr std::array<std::string_view, 27> kOperators = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "*",
                                                         "/",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         "=",  ">",  "<",  ".",  ":",  "|",  ",", ";", "!"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

bool is_name_part(char c) {
  return begins_name(c) || is_digit(c);
}

class Lexer {
 public:
  Lexer(const std::string& source, const FailAt& fail) : source_(source), fail_(fail) {}

  std::vector<Token> tokens() {
    while (at_ < source_.size()) read_data();
    add(Token::Kind::End, at_, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, size_t at, std::string text) { tokens_.push_back({kind, at, std::move(text)}); }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool is_at(std::string_view text) const { return std::string_view(source_).substr(at_).starts_with(text); }
  void skip_spaces() {
    const std::string_view rest = std::string_view(source_).substr(at_);
    at_ += rest.size() - strip_left(rest).size();
  }

  /// Returns the first `{{`, `{%` or `{#` from `from` on; npos when there is none.
  size_t find_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos; at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  /// Returns the text before a tag without what the tag's sign, or lstrip_blocks, takes away.
  std::string_view before_tag(std::string_view text, char sign, bool is_print) const {
    if (sign == '-') return strip_right(text);
    if (sign == '+' || is_print) return text;
    const size_t line = text.rfind('\n') + 1;  // 0 when there is none
    if (line == 0 && !line_begins_) return text;
    return text.find_first_not_of(" \t", line) == std::string_view::npos ? text.substr(0, line) : text;
  }

  void add_data(size_t begin, std::string_view text) {
    if (!text.empty()) add(Token::Kind::Data, begin, std::string(text));
  }

  // Notes whether what was read last ended a line.
  void passed() { line_begins_ = at_ > 0 && source_[at_ - 1] == '\n'; }

  void read_data() {
    const size_t begin = at_, tag = find_tag(at_);
    if (tag == std::string::npos) {
      add_data(begin, std::string_view(source_).substr(begin));
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    add_data(begin, before_tag(std::string_view(source_).substr(begin, tag - begin), sign, kind == '{'));
    at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    passed();
    if (kind == '#') {
      read_comment(tag);
    } else if (kind == '{') {
      read_expression(tag, Token::Kind::PrintBegin, Token::Kind::PrintEnd);
    } else {
      read_expression(tag, Token::Kind::BlockBegin, Token::Kind::BlockEnd);
    }
    passed();
  }

  /// Skips what follows the end of a block or comment: after `-` all spaces, after `+` nothing, else one line end.
  void skip_after_block(char sign) {
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && peek() == '\n') {
      ++at_;
    }
  }

  void read_comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_(tag, "the comment that begins here has no end: #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    skip_after_block(sign);
  }

  void read_expression(size_t tag, Token::Kind begin, Token::Kind end) {
    const bool is_print = begin == Token::Kind::PrintBegin;
    const std::string_view close = is_print ? "}}" : "%}";
    add(begin, tag, "");
    std::string open;  // brackets that have not been closed
    while (true) {
      skip_spaces();
      if (at_ >= source_.size()) fail_(tag, "the tag that begins here has no end: " + std::string(close));
      if (open.empty()) {
        const char sign = peek();
        const bool has_sign =
            (sign == '-' || (sign == '+' && !is_print)) && std::string_view(source_).substr(at_ + 1).starts_with(close);
        if (has_sign || is_at(close)) {
          add(end, at_, "");
          at_ += has_sign ? 3 : 2;
          if (!is_print) {
            skip_after_block(has_sign ? sign : '\0');
          } else if (has_sign) {
            skip_spaces();
          }
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const size_t begin = at_;
    const char c = peek();
    if (begins_name(c)) {
      while (is_name_part(peek())) ++at_;
      std::string name = source_.substr(begin, at_ - begin);
      if (name == "raw" && tokens_.back().kind == Token::Kind::BlockBegin) {
        fail_(begin, "{% raw %} is not supported in chat templates");
      }
      add(Token::Kind::Name, begin, std::move(name));
    } else if (is_digit(c)) {
      read_number();
    } else if (c == '"' || c == '\'') {
      read_text();
    } else {
      const auto* const found = std::ranges::find_if(kOperators, [&](std::string_view text) { return is_at(text); });
      if (found == kOperators.end()) fail_(at_, std::string("the character '") + c + "' has no meaning here");
      at_ += found->size();
      add(Token::Kind::Operator, begin, std::string(*found));
      if (*found == "(" || *found == "[" || *found == "{") open += found->front();
      if (*found == ")" || *found == "]" || *found == "}") {
        const char needed = *found == ")" ? '(' : *found == "]" ? '[' : '{';
        if (open.empty() || open.back() != needed) fail_(begin, "this " + std::string(*found) + " closes nothing");
        open.pop_back();
      }
    }
  }

  void read_number() {
    const size_t begin = at_;
    const bool after_point = begin > 0 && source_[begin - 1] == '.';
    const auto digits = [&] {
      while (is_digit(peek())) ++at_;
    };
    bool is_float = false;
    digits();
    if (!after_point && peek() == '.' && is_digit(peek(1))) {
      is_float = true;
      ++at_;
      digits();
    }
    const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if (!after_point && (peek() == 'e' || peek() == 'E') && is_digit(peek(1 + sign))) {
      is_float = true;
      at_ += 1 + sign;
      digits();
    }
    if (is_name_part(peek())) fail_(begin, "a number is followed by a letter or an underscore");
    add(is_float ? Token::Kind::Float : Token::Kind::Whole, begin, source_.substr(begin, at_ - begin));
  }

  void read_text() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string content;
    while (peek() != quote) {
      if (at_ >= source_.size()) fail_(begin, "the text that begins here has no end");
      if (peek() != '\\') {
        content += source_[at_++];
        continue;
      }
      ++at_;
      read_escape(content);
    }
    ++at_;
    add(Token::Kind::String, begin, content);
  }

  /// Reads what follows a backslash, as Python does.
  void read_escape(std::string& content) {
    const char c = peek();
    constexpr std::string_view kNames = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t found = kNames.find(c); found != std::string_view::npos && c != '\0') {
      ++at_;
      content += kMeanings[found];
    } else if (c == '\n') {
      ++at_;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      read_code_point(c == 'x' ? 2 : c == 'u' ? 4 : 8, content);
    } else if (c >= '0' && c <= '7') {
      fail_(at_ - 1, "octal escapes are not supported in chat templates");
    } else {
      content += '\\';  // and what follows, as it stands
    }
  }

  void read_code_point(size_t digits, std::string& content) {
    const std::string hex = source_.substr(at_ + 1, digits);
    const bool is_hex = hex.size() == digits && hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    const unsigned long point = is_hex ? std::strtoul(hex.c_str(), nullptr, 16) : kCodePoints;
    if (point >= kCodePoints || (point >= 0xD800 && point < 0xE000)) fail_(at_ - 1, "this escape is not a character");
    at_ += 1 + digits;
    append_utf8(static_cast<uint32_t>(point), content);
  }

  const std::string& source_;
  const FailAt& fail_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool line_begins_ = true;
};

}  // namespace

std::string normalized_source(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::vector<Token> tokenize(const std::string& source, const FailAt& fail) {
  return Lexer(source, fail).tokens();
}

}  // namespace meshtrain::jinja
