#include "runtime/text/prepare/text_parts.h"

#include <gtest/gtest.h>

#include <random>

#include "mesh/base/error.h"
#include "mesh/base/files/json_lines.h"
#include "tests/support/compressed_bytes.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::long_text;
using testing::message;

class CompressedText : public testing::CompressedFiles {
 protected:
  struct Read {
    std::vector<std::string> documents;
    int64_t bytes = 0;
  };
  static Read documents(const std::filesystem::path& path, const TextFormat& format = {}) {
    check_texts({path}, format);
    Read read;
    for (const std::vector<TextPart>& parts : divide_text({path}, format, 1000)) {
      for (const TextPart& part : parts) {
        for_each_document(part, format, [&](const TextDocument& document) {
          read.documents.emplace_back(document.text);
          read.bytes += document.bytes;
        });
      }
    }
    return read;
  }
};

TEST_P(CompressedText, HasDocuments) {
  const auto lines = file("a.jsonl", packed("{\"text\": \"one\"}\r\n\n{\"text\": \"\"}\n{\"text\":\"t\xffwo\"}"));
  EXPECT_TRUE(is_json_lines(lines, {}));
  EXPECT_EQ(documents(lines).documents, (std::vector<std::string>{"one", "t\uFFFDwo"}));
  const auto text = file("b.txt", packed("first\nsecond\n"));
  EXPECT_FALSE(is_json_lines(text, {}));
  EXPECT_EQ(documents(text).documents, std::vector<std::string>{"first\nsecond\n"});
  EXPECT_EQ(documents(text).bytes, static_cast<int64_t>(std::filesystem::file_size(text)));
  EXPECT_EQ(documents(text, {.document_per_line = true}).documents, (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(documents(file("c.txt", packed(""))).documents, std::vector<std::string>{});
}

TEST_P(CompressedText, HasLinesOfAnyLength) {
  std::string all;
  std::vector<std::string> expected;
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    expected.push_back(long_text(1 + random() % 100'000).substr(0, 1 + random() % 100'000));
    all += expected.back() + "\n";
  }
  expected.push_back(long_text(1'000'000));
  all += expected.back();
  const auto path = file("a.txt", packed(all));
  const Read read = documents(path, {.document_per_line = true});
  EXPECT_TRUE(read.documents == expected);
  EXPECT_LE(read.bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
}

TEST_P(CompressedText, NamesTheLineOfAnError) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += "{\"text\": \"fine\"}\n";
  const auto path = file("a.jsonl", packed(text + "{\"text\": 7}\n" + text));
  EXPECT_TRUE(has(message<InputError>([&] { documents(path); }),
                  path.string() + ", line 40001: \"text\" is not a string, but of the type number"));
  const auto binary = file("b.txt", packed(std::string(100'000, 'a') + std::string("\n\0", 2)));
  EXPECT_TRUE(has(message<InputError>([&] { documents(binary); }), "its byte 100001 is 0"));
}

INSTANTIATE_TEST_SUITE_P(By, CompressedText, ::testing::Values(".gz", ".zst"),
                         [](const auto& instance) { return std::string(instance.param).substr(1); });

}  // namespace
}  // namespace meshtrain
