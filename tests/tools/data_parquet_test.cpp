#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "runtime/training/data/token_file.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

/// Returns the text of a row of fixtures/texts.parquet.
std::optional<std::string> parquet_row(int i) {
  if (i % 7 == 3) return std::nullopt;
  if (i % 11 == 5) return "";
  std::string text = "Row " + std::to_string(i) + " ";
  for (int k = 0; k < i % 5; ++k) text += "\u00e9";
  return text;
}

class DataParquet : public ::testing::Test {
 protected:
  static bool is_built() { return fs::exists(fs::path(build_folder()) / "libmeshtrain_parquet.so"); }
  static fs::path rows() { return fs::path(source_folder()) / "tests/runtime/text/prepare/fixtures/texts.parquet"; }

  Ending prepare(const fs::path& input, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"data",        "prepare", "--text",    input, "--tokenizer", "bytes",
                                      "--separator", "300",     "--workers", "1",   "--out",       out()};
    words.insert(words.end(), more.begin(), more.end());
    return run_meshtrain(words);
  }
  fs::path out() const { return scratch_.path() / "out.bin"; }

  /// Returns the documents of the token file.
  std::vector<std::string> documents() const {
    const TokenFile tokens(out(), "uint16");
    std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
    tokens.read(0, tokens.size(), ids.data());
    std::vector<std::string> all(1);
    for (const int64_t id : ids) {
      if (id == 300) {
        all.emplace_back();
      } else {
        all.back() += static_cast<char>(id);
      }
    }
    all.pop_back();
    return all;
  }

  ScratchFolder scratch_;
};

TEST_F(DataParquet, WithoutArrowIsRefused) {
  if (is_built()) GTEST_SKIP() << "meshtrain was built with Arrow";
  EXPECT_EQ(only_complaint(prepare(rows())),
            "cannot read " + rows().string() +
                ": meshtrain was built without Arrow: run tools/setup --parquet and build again, or convert it to JSON "
                "lines");
}

TEST_F(DataParquet, GivesTheTextsOfAColumn) {
  if (!is_built()) GTEST_SKIP() << "meshtrain was built without Arrow";
  const Ending prepared = prepare(rows());
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_TRUE(has(prepared.out, " of 779 documents in 9,266 bytes of text, separator 300\n")) << prepared.out;
  std::vector<std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    const std::optional<std::string> text = parquet_row(i);
    if (text && !text->empty()) expected.push_back(*text);
  }
  EXPECT_EQ(documents(), expected);
  ASSERT_EQ(prepare(rows(), {"--field", "meta.lang"}).status, 0);
  EXPECT_EQ(documents().size(), 1000u);
  EXPECT_EQ(documents()[1], "de");
}

TEST_F(DataParquet, RefusesWhatHasNoTexts) {
  if (!is_built()) GTEST_SKIP() << "meshtrain was built without Arrow";
  const std::string file = rows().string();
  EXPECT_EQ(only_complaint(prepare(rows(), {"--field", "body"})),
            file +
                " has no column \"body\"; its columns are id, text, tags.list.element, meta.lang: name one with "
                "--field");
  for (const char* column : {"id", "tags.list.element"}) {
    EXPECT_EQ(only_complaint(prepare(rows(), {"--field", column})),
              file + " has no texts in its column \"" + column + "\": name another one with --field");
  }
  const fs::path twice = rows().parent_path() / "twice.parquet";
  EXPECT_EQ(only_complaint(prepare(twice)), twice.string() + " has several columns \"text\": rename one of them");
  const std::string full = content(rows());
  const fs::path broken = scratch_.path() / "broken.parquet";
  std::mt19937_64 random(2);
  for (int round = 0; round < 12; ++round) {
    std::string bytes = full;
    if (round == 0) bytes = "no such file";
    if (round == 1) bytes.resize(bytes.size() / 2);
    if (round == 2) bytes.clear();
    if (round > 2) bytes = damaged(full, random);
    write_file(broken, bytes);
    const Ending ending = prepare(broken);
    if (ending.status == 0) continue;  // a change of a value
    EXPECT_TRUE(has(only_complaint(ending), broken.string())) << round;
  }
  EXPECT_FALSE(fs::exists(out().string() + ".parts/0.tokens"));
}

}  // namespace
}  // namespace meshtrain::testing
