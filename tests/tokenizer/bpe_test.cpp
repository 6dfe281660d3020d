#include "runtime/text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace meshtrain {
namespace {

class BpeTest : public ::testing::Test {
 protected:
  using Ids = std::vector<int64_t>;

  /// Returns options with the tokens a b c d, 0 to 3, and one more token for each of `merges`, in the order of ranks.
  static BpeOptions with_merges(const std::vector<std::pair<std::string, std::string>>& merges) {
    BpeOptions options;
    options.ids = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
    for (const auto& [left, right] : merges) {
      const auto rank = static_cast<uint32_t>(options.merges.size());
      const uint32_t merged = 4 + rank;
      options.merges.push_back({options.ids.at(left), options.ids.at(right), rank, merged});
      options.ids.emplace(left + right, merged);
    }
    return options;
  }
  static Ids ids_of(const BpeOptions& options, const std::string& word) {
    const Bpe bpe(options);
    BpeWords words(bpe);
    Ids ids, again;
    words.encode(word, ids);
    words.encode(word, again);
    EXPECT_EQ(again, ids) << "the remembered word";
    return ids;
  }
};

TEST_F(BpeTest, MergesByRankAndEqualRanksFromTheLeft) {
  EXPECT_EQ(ids_of(with_merges({{"b", "c"}, {"a", "b"}}), "abc"), (Ids{0, 4})) << "b c comes first";
  EXPECT_EQ(ids_of(with_merges({{"a", "b"}, {"b", "c"}}), "abc"), (Ids{4, 2}));
  EXPECT_EQ(ids_of(with_merges({{"a", "a"}}), "aaa"), (Ids{4, 0}));
  EXPECT_EQ(ids_of(with_merges({{"a", "b"}, {"ab", "c"}, {"abc", "d"}}), "abcdab"), (Ids{6, 4}));
}

TEST_F(BpeTest, AWordThatIsATokenIsOneWhereMergesAreIgnored) {
  BpeOptions options = with_merges({{"a", "b"}});
  options.ids.emplace("cab", 9);
  EXPECT_EQ(ids_of(options, "cab"), (Ids{2, 4}));
  options.whole_words = true;
  EXPECT_EQ(ids_of(options, "cab"), (Ids{9}));
}

TEST_F(BpeTest, BytesWithoutATokenAreUnknownOrLeftOut) {
  BpeOptions options = with_merges({});
  EXPECT_EQ(ids_of(options, "axxb"), (Ids{0, 1}));
  options.unknown = 7;
  EXPECT_EQ(ids_of(options, "axxb"), (Ids{0, 7, 7, 1}));
  EXPECT_EQ(ids_of(options, std::string(1, '\0')), (Ids{7})) << "a free slot of the memory holds this byte too";
  options.fuse_unknown = true;
  EXPECT_EQ(ids_of(options, "axxbx"), (Ids{0, 7, 1, 7}));
}

TEST_F(BpeTest, CharactersFallBackToTheirBytes) {
  BpeOptions options = with_merges({});
  options.of_characters = true;
  options.ids.emplace("é", 8);
  options.unknown = 7;
  EXPECT_EQ(ids_of(options, "aéß"), (Ids{0, 8, 7}));
  options.fallback.resize(256);
  options.fallback[0xC3] = 20;
  options.fallback[0x9F] = 21;
  EXPECT_EQ(ids_of(options, "aéß"), (Ids{0, 8, 20, 21}));
  EXPECT_EQ(ids_of(options, "ü"), (Ids{7})) << "one of its bytes has no token";
}

TEST_F(BpeTest, WordsOfAnyLengthAreRemembered) {
  const Bpe bpe(with_merges({{"a", "b"}}));
  BpeWords words(bpe);
  std::mt19937 random(1);
  for (const size_t size : {1u, 21u, 22u, 23u, 24u, 25u, 1000u}) {
    for (int i = 0; i < 3; ++i) {  // words that differ in their last letter share their beginning
      const std::string word = std::string(size - 1, 'c') + static_cast<char>('a' + i);
      Ids ids;
      words.encode(word, ids);
      ASSERT_EQ(ids.size(), size);
      EXPECT_EQ(ids.back(), i) << size;
    }
  }
}

// The reference looks for the best pair again after each merge.
TEST_F(BpeTest, IsTheSameAsMergingTheBestPairAgainAndAgain) {
  const BpeOptions options = with_merges(
      {{"a", "b"}, {"b", "a"}, {"ab", "ab"}, {"c", "d"}, {"ba", "c"}, {"abab", "cd"}, {"d", "d"}, {"a", "a"}});
  const auto merged = [&](const std::string& word) {
    Ids ids;
    for (const char letter : word) ids.push_back(letter - 'a');
    while (true) {
      const Merge* best = nullptr;
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        for (const Merge& merge : options.merges) {
          if (merge.left != ids[i] || merge.right != ids[i + 1] || (best != nullptr && best->rank <= merge.rank))
            continue;
          best = &merge;
          at = i;
        }
      }
      if (best == nullptr) return ids;
      ids[at] = best->merged;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  };
  const Bpe bpe(options);
  BpeWords words(bpe);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string word(1 + random() % 30, 'a');
    for (char& letter : word) letter = static_cast<char>('a' + random() % 4);
    Ids ids;
    words.encode(word, ids);
    EXPECT_EQ(ids, merged(word)) << word;
  }
}

TEST(MergeTable, FindsEveryPairAndTheLastOfEquals) {
  std::vector<Merge> merges;
  for (uint32_t i = 0; i < 1000; ++i) merges.push_back({i, i * 7919, i, i + 1});
  merges.push_back({5, 5 * 7919, 2000, 9});
  const MergeTable table(merges);
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_NE(table.find(i, i * 7919), nullptr) << i;
    EXPECT_EQ(table.find(i, i * 7919)->merged, i == 5 ? 9 : i + 1);
    EXPECT_EQ(table.find(i, i * 7919 + 1), nullptr);
  }
  EXPECT_EQ(MergeTable({}).find(0, 0), nullptr);
}

}  // namespace
}  // namespace meshtrain
