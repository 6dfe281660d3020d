#include "runtime/text/jinja/token_cursor.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/chat/jinja/parsed.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

/// A cursor whose functions are public.
class Cursor : public jinja::TokenCursor {
 public:
  explicit Cursor(const std::string& source) : TokenCursor(jinja::tokenize(source, kFailInTemplate), kFailInTemplate) {}

  using TokenCursor::advance;
  using TokenCursor::ahead;
  using TokenCursor::expect;
  using TokenCursor::expect_word;
  using TokenCursor::is_word;
  using TokenCursor::Kind;
  using TokenCursor::Level;
  using TokenCursor::name;
  using TokenCursor::now;
  using TokenCursor::shown;
  using TokenCursor::skip;
  using TokenCursor::skip_word;
};

TEST(TokenCursor, SkipsAndExpects) {
  Cursor cursor("{{ a + 'b' }}c");
  cursor.expect(Cursor::Kind::PrintBegin, "{{");
  EXPECT_TRUE(cursor.is_word({"b", "a"}));
  EXPECT_FALSE(cursor.skip("a")) << "a name is not an operator";
  EXPECT_EQ(cursor.name(), "a");
  EXPECT_FALSE(cursor.skip_word("+"));
  EXPECT_EQ(cursor.ahead().text, "b");
  EXPECT_TRUE(cursor.skip("+"));
  EXPECT_EQ(message<std::runtime_error>([&] { cursor.name(); }), "7: a name is expected, but here is \"b\"");
  EXPECT_EQ(message<std::runtime_error>([&] { cursor.expect(")"); }), "7: \")\" is expected, but here is \"b\"");
  cursor.advance();
  EXPECT_EQ(cursor.shown(), "}}");
  cursor.advance();
  EXPECT_EQ(cursor.shown(), "text");
}

TEST(TokenCursor, StaysAtTheEnd) {
  Cursor cursor("");
  for (int i = 0; i < 3; ++i) cursor.advance();
  EXPECT_EQ(cursor.now().kind, Cursor::Kind::End);
  EXPECT_EQ(cursor.ahead().kind, Cursor::Kind::End);
  EXPECT_EQ(cursor.shown(), "the end of the template");
}

TEST(TokenCursor, CountsLevelsInsideEachOther) {
  Cursor cursor("");
  for (int i = 0; i < 1000; ++i) const Cursor::Level one(cursor);
  std::vector<std::unique_ptr<Cursor::Level>> levels;
  const std::string refused = message<std::runtime_error>([&] {
    while (levels.size() < 1000) levels.push_back(std::make_unique<Cursor::Level>(cursor));
  });
  EXPECT_EQ(refused, "0: the template is nested too deeply");
  EXPECT_GT(levels.size(), 100u);
}

}  // namespace
}  // namespace meshtrain::testing
