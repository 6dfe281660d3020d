#include "mesh/base/files/json_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

class JsonLinesFile : public ::testing::Test {
 protected:
  bool is_lines(const std::string& name, const std::string& text) const {
    testing::write_file(folder_.path() / name, text);
    return is_json_lines(folder_.path() / name, {"text", "messages"});
  }

  const testing::ScratchFolder folder_;
};

TEST_F(JsonLinesFile, IsKnownByItsName) {
  for (const char* name : {"a.jsonl", "a.NDJSON", "a.b.jsonl", "a.jsonl.gz", "a.JSONL.zst"}) {
    EXPECT_TRUE(is_json_lines(folder_.path() / name, {})) << name << ", which is not opened";
  }
  EXPECT_FALSE(is_lines("a.txt", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
}

TEST_F(JsonLinesFile, IsKnownByItsFirstLinesUnderAnotherName) {
  for (const char* name : {"a.json", "a"}) {
    EXPECT_TRUE(is_lines(name, "{\"a\": 1}\n{\"b\": 2}\n")) << name;
    EXPECT_TRUE(is_lines(name, "\xEF\xBB\xBF\n {\"a\": 1}\r\n\n[2]")) << name << ", with blanks and a byte order mark";
    EXPECT_TRUE(is_lines(name, "{\"text\": \"alone\"}\n")) << name;
    EXPECT_FALSE(is_lines(name, "{\"a\": 1}\n")) << name << ", one object with other keys";
    EXPECT_FALSE(is_lines(name, "{\n  \"a\": 1\n}\n")) << name << ", a document over several lines";
    EXPECT_FALSE(is_lines(name, "hello\n{\"a\": 1}\n")) << name;
    EXPECT_FALSE(is_lines(name, "")) << name;
  }
}

TEST_F(JsonLinesFile, ALongFirstLineIsReadOnlyAsFarAsNeeded) {
  EXPECT_TRUE(is_lines("a.json", "{\"a\": \"" + std::string(200'000, 'x') + "\"}\n{}\n"));
}

TEST(FirstJsonLine, IsTheValueOfTheFirstLineAlone) {
  EXPECT_EQ(first_json_line("{\"a\": 1}\n}}"), nlohmann::json({{"a", 1}}));
  EXPECT_TRUE(first_json_line("{\"a\":\n1}").is_discarded());
  EXPECT_TRUE(first_json_line(std::string(100'000, '[')).is_discarded()) << "it needs no stack of that depth";
}

TEST(JsonLinesCommand, FitsTheKindOfDocument) {
  EXPECT_EQ(json_lines_command(" [ {\"text\": 1}", "a.json"), "jq -c '.[]' a.json > FILE.jsonl");
  EXPECT_EQ(json_lines_command("{\"text\"", "a.json"), "jq -c . a.json > FILE.jsonl");
  EXPECT_EQ(json_lines_command("[ {\"role\" : \"user\"", "a.json"), "jq -c . a.json > FILE.jsonl")
      << "a list of messages is one conversation";
  EXPECT_EQ(json_lines_command("\"text\"", "a.json"), "");
}

}  // namespace
}  // namespace meshtrain
