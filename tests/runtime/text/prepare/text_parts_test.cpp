#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "mesh/base/error.h"
#include "mesh/base/files/compressed_file.h"
#include "mesh/base/files/json_lines.h"
#include "runtime/text/prepare/text_parts.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

/// Text that compresses to about half.
std::string long_text(size_t bytes) {
  std::mt19937_64 random(3);
  std::string text;
  while (text.size() < bytes) text += static_cast<char>('a' + random() % 16);
  return text;
}

class CompressedText : public ::testing::TestWithParam<const char*> {
 protected:
  std::string ending() const { return GetParam(); }
  std::string packed(const std::string& text) const { return ending() == ".gz" ? gzip(text) : zstd(text); }
  std::filesystem::path file(const std::string& name, const std::string& bytes) const {
    write_file(scratch_.path() / (name + ending()), bytes);
    return scratch_.path() / (name + ending());
  }

  /// Returns what the file holds, read in pieces of `count` bytes.
  static std::string content_of(const std::filesystem::path& path, size_t count = 100'000) {
    CompressedFile compressed(path);
    std::string all, piece(count, '\0');
    while (const size_t read = compressed.read(piece.data(), count)) all.append(piece, 0, read);
    EXPECT_EQ(compressed.read(piece.data(), count), 0u) << "the end stays the end";
    EXPECT_EQ(compressed.position(), static_cast<int64_t>(std::filesystem::file_size(path)));
    return all;
  }
  static std::string refusal(const std::filesystem::path& path) {
    return message<InputError>([&] { content_of(path); });
  }

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

  ScratchFolder scratch_;
};

TEST_P(CompressedText, IsWhatWasCompressed) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1} << 18, (size_t{1} << 21) + 7}) {
    const std::string text = long_text(bytes);
    const auto path = file("a", packed(text));
    EXPECT_TRUE(content_of(path) == text) << bytes;
    if (bytes < 1 << 20) {
      EXPECT_TRUE(content_of(path, 3) == text) << bytes;
    }
  }
  EXPECT_TRUE(content_of(file("zeros", packed(std::string(50'000'000, '\0'))), 1 << 20) ==
              std::string(50'000'000, '\0'));
}

TEST_P(CompressedText, MayHaveSeveralMembers) {
  const std::string a = long_text(300'000), b = "the end";
  EXPECT_EQ(content_of(file("a", packed(a) + packed("") + packed(b))), a + b);
}

TEST_P(CompressedText, IsRefusedWhenItIsCutShortOrDamaged) {
  const std::string whole = packed(long_text(600'000));
  for (const size_t left : {size_t{12}, size_t{100}, whole.size() / 2, whole.size() - 5, whole.size() - 1}) {
    const auto path = file("a", whole.substr(0, left));
    const std::string text = refusal(path);
    EXPECT_EQ(text, "cannot read " + path.string() +
                        ": it is cut short, as its compressed text does not end within its " + std::to_string(left) +
                        " bytes: bring a complete copy");
  }
  std::mt19937_64 random(1);
  int damaged = 0;
  for (int round = 0; round < 50; ++round) {
    std::string bytes = whole;
    bytes[10 + random() % (bytes.size() - 10)] ^= 0x55;
    const std::string text = refusal(file("a", bytes));
    if (text.empty()) continue;  // zstd's frames have no checksum unless they are asked for
    ++damaged;
    EXPECT_TRUE(has(text, "cannot read ") && has(text, "a" + ending())) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  EXPECT_GT(damaged, ending() == ".gz" ? 49 : 0);
  EXPECT_TRUE(has(refusal(file("a", whole + "more")), "something follows its compressed text"));
  EXPECT_TRUE(has(refusal(file("a", "plain text")), "its name ends in " + ending() + ", but it is not compressed by "));
  EXPECT_TRUE(has(refusal(file("a", "")), "its name ends in " + ending()));
}

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
                  path.string() + ", line 40001: \"text\" is not a text, but of the type number"));
  const auto binary = file("b.txt", packed(std::string(100'000, 'a') + std::string("\n\0", 2)));
  EXPECT_TRUE(has(message<InputError>([&] { documents(binary); }), "its byte 100001 is 0"));
}

INSTANTIATE_TEST_SUITE_P(By, CompressedText, ::testing::Values(".gz", ".zst"),
                         [](const auto& instance) { return std::string(instance.param).substr(1); });

TEST(GzipFile, MayEndWithZeros) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a.GZ", gzip("text") + std::string(512, '\0'));
  CompressedFile file(scratch.path() / "a.GZ");
  char text[10];
  EXPECT_EQ(file.read(text, sizeof text), 4u);
  EXPECT_EQ(file.read(text, sizeof text), 0u);
}

}  // namespace
}  // namespace meshtrain
