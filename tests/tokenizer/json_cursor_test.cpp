#include "runtime/text/tokenizer/json_cursor.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

class JsonCursorTest : public ::testing::Test {
 protected:
  template <class Action>
  std::string cursor_error(const Action& action) const {
    return testing::message<InputError>([&] { action(JsonCursor("t.json", document_)); });
  }

  const nlohmann::json document_ = nlohmann::json::parse(
      R"({"model": {"type": "BPE", "merges": ["a b", 3], "none": null, "flag": true, "id": 4294967294,
          "large": 4294967295, "below": -1}, "list": [1, 2, 3, 4, 5, 6, 7, 8, 9], "long": "0123456789012345678901234567890123456789012345678901234567890123456789"})");
};

TEST_F(JsonCursorTest, ErrorsHaveTheFileAndThePath) {
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("model").at("merges").at(1).text(); }),
            "t.json: model.merges[1] is 3, not a string");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("vocab"); }), "t.json: no vocab");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("model").at("none"); }), "t.json: model has no none");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("model").at("type").at("x"); }),
            "t.json: model.type is \"BPE\", not an object");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("list").flag(); }),
            "t.json: list is a list, not true or false");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("long").flag(); }),
            "t.json: long is \"01234567890123456789012345678901234567890123456789012345678..., not true or false");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.fail("a\nb"); }), "t.json: a b") << "one line";
}

TEST_F(JsonCursorTest, AnAbsentMemberIsTheSameAsNull) {
  const JsonCursor model = JsonCursor("t.json", document_).at("model");
  EXPECT_FALSE(model.find("none") || model.find("absent"));
  EXPECT_EQ(model.text_or("none", "x"), "x");
  EXPECT_EQ(model.text_or("type", "x"), "BPE");
  EXPECT_TRUE(model.flag_or("absent", true));
  EXPECT_TRUE(model.flag_or("flag", false));
}

TEST_F(JsonCursorTest, AnIdIsBelowTheLargestNumberOf32Bits) {
  const JsonCursor model = JsonCursor("t.json", document_).at("model");
  EXPECT_EQ(model.at("id").id(), 4294967294u);
  for (const char* key : {"large", "below", "type"}) {
    EXPECT_TRUE(testing::has(testing::message<InputError>([&] { model.at(key).id(); }), "not a token id")) << key;
  }
}

TEST_F(JsonCursorTest, ATypeIsOneOfThoseThatAreSupported) {
  EXPECT_EQ(JsonCursor("t.json", document_).at("model").type_of("Unigram, BPE"), "BPE");
  EXPECT_EQ(cursor_error([](const JsonCursor& root) { root.at("model").type_of("Unigram, BPEX"); }),
            "t.json: model.type is \"BPE\", which is not supported; supported are: Unigram, BPEX");
}

}  // namespace
}  // namespace meshtrain
