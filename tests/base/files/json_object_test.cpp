#include "mesh/base/files/json_object.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

class JsonObject : public ::testing::Test {
 protected:
  static std::string refused(const std::string& text) {
    return testing::message<InputError>([&] { parse_json_object("a.json", text); });
  }
  static std::string replaced(std::string text, size_t expected) {
    EXPECT_EQ(replace_lone_surrogates(text), expected);
    return text;
  }
};

TEST_F(JsonObject, AnotherKindOfValueIsRefusedWithTheReason) {
  EXPECT_EQ(parse_json_object("a.json", "{\"a\": [1]}").at("a").at(0), 1);
  EXPECT_EQ(refused("[1]"), "a.json is not a JSON object");
  EXPECT_EQ(refused("{\"a\": 1,\n  }").substr(0, 43), "a.json is not valid JSON: line 2, column 3:");
  EXPECT_EQ(refused("<!DOCTYPE html><html>"),
            "a.json is not valid JSON: it is a page of HTML, not the file itself: download it again");
  EXPECT_EQ(refused(""), "a.json is not valid JSON: it is an empty file: download it again");
}

TEST_F(JsonObject, ATooDeepValueIsNotParsed) {
  const auto nested = [](size_t lists) { return "{\"a\": " + std::string(lists, '[') + std::string(lists, ']') + "}"; };
  EXPECT_EQ(refused(nested(199)), "");
  EXPECT_EQ(refused(nested(200)), "a.json is not read: its values are nested more than 200 levels deep");
  EXPECT_EQ(refused("{\"a\": \"\\\"" + std::string(1000, '[') + "\"}"), "")
      << "brackets in a string, after an escaped quote";
  EXPECT_TRUE(testing::has(refused(std::string(10'000'000, '[')), "nested more than"));
}

TEST_F(JsonObject, HalvesOfSurrogatePairsAreReplaced) {
  EXPECT_EQ(replaced(R"("\ud83d\ude00")", 0), R"("\ud83d\ude00")");
  EXPECT_EQ(replaced(R"("\ud83d \ude00")", 2), R"("\ufffd \ufffd")");
  EXPECT_EQ(replaced(R"("\uD83D\uD83D\uDE00")", 1), R"("\ufffd\uD83D\uDE00")");
  EXPECT_EQ(replaced(R"("\\ud83d \u00e9 \ud83)", 0), R"("\\ud83d \u00e9 \ud83)")
      << "an escaped backslash does not begin an escape";
}

}  // namespace
}  // namespace meshtrain
