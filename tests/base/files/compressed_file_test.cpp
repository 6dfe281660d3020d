#include "mesh/base/files/compressed_file.h"

#include <gtest/gtest.h>

#include <random>

#include "mesh/base/error.h"
#include "tests/support/compressed_bytes.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

class CompressedFileTest : public CompressedFiles {
 protected:
  /// Returns the contents of the file, read in pieces of `count` bytes.
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
};

TEST_P(CompressedFileTest, GivesWhatWasCompressed) {
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

TEST_P(CompressedFileTest, MayHaveSeveralMembers) {
  const std::string a = long_text(300'000), b = "the end";
  EXPECT_EQ(content_of(file("a", packed(a) + packed("") + packed(b))), a + b);
}

TEST_P(CompressedFileTest, IsRefusedWhenItIsCutShortOrDamaged) {
  const std::string full = packed(long_text(600'000));
  for (const size_t left : {size_t{12}, size_t{100}, full.size() / 2, full.size() - 5, full.size() - 1}) {
    const auto path = file("a", full.substr(0, left));
    const std::string text = refusal(path);
    EXPECT_EQ(text, "cannot read " + path.string() +
                        ": it is cut short, as its compressed text does not end within its " + std::to_string(left) +
                        " bytes: bring a complete copy");
  }
  std::mt19937_64 random(1);
  int damaged = 0;
  for (int round = 0; round < 50; ++round) {
    std::string bytes = full;
    bytes[10 + random() % (bytes.size() - 10)] ^= 0x55;
    const std::string text = refusal(file("a", bytes));
    if (text.empty()) continue;  // zstd's frames have no checksum unless they are asked for
    ++damaged;
    EXPECT_TRUE(has(text, "cannot read ") && has(text, "a" + ending())) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  EXPECT_GT(damaged, ending() == ".gz" ? 49 : 0);
  EXPECT_TRUE(has(refusal(file("a", full + "more")), "other bytes follow its compressed text"));
  EXPECT_TRUE(has(refusal(file("a", "plain text")), "its name ends in " + ending() + ", but it is not compressed by "));
  EXPECT_TRUE(has(refusal(file("a", "")), "its name ends in " + ending()));
}

INSTANTIATE_TEST_SUITE_P(By, CompressedFileTest, ::testing::Values(".gz", ".zst"),
                         [](const auto& instance) { return std::string(instance.param).substr(1); });

TEST(GzipFile, MayEndWithZeros) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a.GZ", gzip("text") + std::string(512, '\0'));
  CompressedFile file(scratch.path() / "a.GZ");
  char text[10];
  EXPECT_EQ(file.read(text, sizeof text), 4u);
  EXPECT_EQ(file.read(text, sizeof text), 0u);
}

TEST(CompressedFile, IsKnownByItsNameInCapitalsToo) {
  EXPECT_EQ(compression_of("a.jsonl.GZ"), Compression::Gzip);
  EXPECT_EQ(compression_of("a.zst"), Compression::Zstd);
  EXPECT_EQ(compression_of("gz"), Compression::None);
  EXPECT_EQ(uncompressed_name("/data/a.jsonl.gz"), "a.jsonl");
  EXPECT_EQ(uncompressed_name("/data/a.jsonl"), "a.jsonl");
}

}  // namespace
}  // namespace meshtrain::testing
