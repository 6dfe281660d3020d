#include "runtime/text/jinja/token_cursor.h"

#include <cstdlib>

namespace meshtrain::jinja {
namespace {

constexpr int kDeepestParse = 400;  // calls of the functions that count a Level inside each other

}  // namespace

void TokenCursor::fail_at(size_t at, const std::string& reason) const {
  fail_(at, reason);
  std::abort();  // fail_ throws
}

std::string TokenCursor::shown() const {
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

void TokenCursor::advance() {
  if (next_ + 1 < tokens_.size()) ++next_;
}

bool TokenCursor::skip(std::string_view text) {
  if (!is_operator(text)) return false;
  advance();
  return true;
}

bool TokenCursor::skip_word(std::string_view text) {
  if (!is_word(text)) return false;
  advance();
  return true;
}

void TokenCursor::expect(std::string_view text) {
  if (!skip(text)) fail("\"" + std::string(text) + "\" is expected, but here is " + shown());
}

void TokenCursor::expect_word(std::string_view text) {
  if (!skip_word(text)) fail("\"" + std::string(text) + "\" is expected, but here is " + shown());
}

void TokenCursor::expect(Kind kind, const char* needed) {
  if (now().kind != kind) fail(std::string(needed) + " is expected, but here is " + shown());
  advance();
}

std::string TokenCursor::name() {
  if (now().kind != Kind::Name) fail("a name is expected, but here is " + shown());
  const std::string text = now().text;
  advance();
  return text;
}

TokenCursor::Level::Level(TokenCursor& cursor) : cursor_(cursor) {
  if (++cursor.level_ > kDeepestParse) cursor.fail("the template is nested too deeply");
}

}  // namespace meshtrain::jinja
