#include "runtime/training/data/dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "mesh/base/error.h"
#include "runtime/training/data/permutation.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::inject_faults;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;
using testing::write_ids;

class DatasetTest : public ::testing::Test {
 protected:
  static constexpr int64_t kS = 4, kVocabulary = 1000;

  DatasetTest() { recipe_.tokens = folder_.path() / "tokens.bin"; }

  /// Writes tokens; token i has id i + 10.
  void write_tokens(int64_t count) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), 10);
    write_ids<uint16_t>(recipe_.tokens, ids);
  }
  Dataset open(uint64_t seed = 1) const { return Dataset(recipe_, kS, kVocabulary, seed); }
  std::string refusal() const {
    return message<InputError>([&] { open(); });
  }
  /// Returns inputs, then labels.
  static std::vector<int64_t> sample(const Dataset& dataset, int64_t g) {
    std::vector<int64_t> both(2 * kS, -1);
    dataset.read(g, both.data(), both.data() + kS);
    return both;
  }

  ScratchFolder folder_;
  DataOptions recipe_;
};

TEST_F(DatasetTest, RecordsLieSideBySide) {
  write_tokens(15);
  const Dataset dataset = open();
  EXPECT_EQ(dataset.num_samples(), 3);
  EXPECT_EQ(sample(dataset, 0), (std::vector<int64_t>{10, 11, 12, 13, 11, 12, 13, 14}));
  EXPECT_EQ(sample(dataset, 2), (std::vector<int64_t>{20, 21, 22, 23, 21, 22, 23, 24}));
  EXPECT_EQ(sample(dataset, 7), sample(dataset, 1)) << "the third epoch";
}

TEST_F(DatasetTest, StreamSamplesShareATokenAndDropTheTail) {
  recipe_.layout = SampleLayout::Stream;
  for (const auto& [tokens, samples] : {std::pair<int64_t, int64_t>{5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}}) {
    write_tokens(tokens);
    EXPECT_EQ(open().num_samples(), samples) << tokens;
  }
  EXPECT_EQ(sample(open(), 1), (std::vector<int64_t>{14, 15, 16, 17, 15, 16, 17, 18}));
}

TEST_F(DatasetTest, IgnoredIdsAreNotCountedButRead) {
  write_ids<uint16_t>(recipe_.tokens, {0, 7, 0, 3, 4, /**/ 0, 0, 0, 0, 0});
  recipe_.ignore_id = 0;
  const Dataset dataset = open();
  EXPECT_EQ(sample(dataset, 0), (std::vector<int64_t>{0, 7, 0, 3, 7, kIgnoredLabel, 3, 4}));
  const int64_t no = kIgnoredLabel;
  EXPECT_EQ(sample(dataset, 1), (std::vector<int64_t>{0, 0, 0, 0, no, no, no, no}));
}

TEST_F(DatasetTest, TheMaskCountsByThePositionOfTheLabel) {
  write_tokens(10);
  recipe_.loss_mask = folder_.path() / "mask";
  recipe_.ignore_id = 14;
  write_file(recipe_.loss_mask, std::string("\0\1\0\1\1"
                                            "\1\0\0\0\2",
                                            10));
  const Dataset dataset = open();
  EXPECT_EQ(sample(dataset, 0), (std::vector<int64_t>{10, 11, 12, 13, 11, kIgnoredLabel, 13, kIgnoredLabel}));
  const int64_t no = kIgnoredLabel;
  EXPECT_EQ(sample(dataset, 1), (std::vector<int64_t>{15, 16, 17, 18, no, no, no, 19}));
  write_file(recipe_.loss_mask, "123456789");
  EXPECT_TRUE(has(refusal(), "has 9 bytes for the 10 tokens of " + recipe_.tokens.string())) << refusal();
  recipe_.loss_mask = folder_.path() / "none";
  EXPECT_TRUE(has(refusal(), "none: No such file"));
}

TEST_F(DatasetTest, AFileThatIsCutShortOrUnreadableMeanwhileIsNamed) {
  write_tokens(50);
  recipe_.loss_mask = folder_.path() / "mask";
  write_file(recipe_.loss_mask, std::string(50, '\1'));
  const Dataset dataset = open();
  const auto said = [&] { return message<InputError>([&] { sample(dataset, 3); }); };
  const auto fault = [](const std::filesystem::path& file) { return "pread:" + file.string() + ":EIO"; };
  inject_faults(fault(recipe_.tokens));
  EXPECT_EQ(said(), "cannot read " + recipe_.tokens.string() +
                        ": Input/output error at byte 30, for tokens 15 to 19, in sample 3");
  inject_faults(fault(recipe_.loss_mask));
  EXPECT_EQ(said(), "cannot read " + recipe_.loss_mask.string() + ": Input/output error at byte 16, in sample 3");
  inject_faults("");
  EXPECT_EQ(said(), "");
  std::filesystem::resize_file(recipe_.tokens, 32);
  EXPECT_EQ(said(), "cannot read " + recipe_.tokens.string() +
                        ": it has 32 bytes, and had 100 when it was opened: it was cut short since, for tokens 15 "
                        "to 19, in sample 3");
}

TEST_F(DatasetTest, ShufflePermutesEachEpochAnewByTheSeedAlone) {
  write_tokens(5 * 100);
  recipe_.shuffle = true;
  const Dataset dataset = open(1);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < 100; ++i) indices.push_back(dataset.index_in_file(epoch * 100 + i));
    EXPECT_EQ(std::set<int64_t>(indices.begin(), indices.end()).size(), 100u);
    epochs.push_back(indices);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(open(1).index_in_file(217), dataset.index_in_file(217));
  EXPECT_EQ(sample(dataset, 42)[0], 10 + 5 * dataset.index_in_file(42));
  int64_t same = 0;
  for (int64_t i = 0; i < 100; ++i) same += open(2).index_in_file(i) == dataset.index_in_file(i);
  EXPECT_LT(same, 20);
}

TEST_F(DatasetTest, RefusesACutFileWithWhatFits) {
  write_tokens(13);
  EXPECT_TRUE(has(refusal(),
                  "13 tokens are not a whole number of records of 5 (train.sequence_length + 1): 2 fit and "
                  "3 are left over"))
      << refusal();
  write_tokens(4);
  EXPECT_TRUE(has(refusal(), "4 tokens are fewer than one sample of 5"));
  recipe_.layout = SampleLayout::Stream;
  EXPECT_TRUE(has(refusal(), "4 tokens are fewer than one sample of 5"));
}

TEST_F(DatasetTest, RefusesImpossibleSettings) {
  write_tokens(10);
  EXPECT_TRUE(has(message<InputError>([&] { Dataset(recipe_, 0, 10, 0); }), "train.sequence_length is 0"));
  EXPECT_TRUE(has(message<InputError>([&] { Dataset(recipe_, 4, 0, 0); }), "vocab_size is 0"));
  recipe_.ignore_id = -100;
  EXPECT_TRUE(has(refusal(), "data.ignore_id is -100, token ids are 0 to 999"));
  recipe_.ignore_id = 1000;
  EXPECT_TRUE(has(refusal(), "data.ignore_id is 1000"));
}

TEST_F(DatasetTest, FindsAnIdBeyondTheVocabularyWhereverItIs) {
  for (const size_t at : {size_t{0}, size_t{63}, size_t{40'000}, size_t{99'999}}) {
    std::vector<int64_t> ids(100'000, kVocabulary - 1);
    ids[at] = kVocabulary;
    write_ids<uint16_t>(recipe_.tokens, ids);
    EXPECT_TRUE(
        has(refusal(), "tokens.bin: token " + std::to_string(at) + " has id 1000, beyond the vocabulary of 1000"))
        << refusal();
  }
  write_ids<uint16_t>(recipe_.tokens, std::vector<int64_t>(100'000, kVocabulary - 1));
  EXPECT_EQ(refusal(), "");
}

TEST_F(DatasetTest, SamplesALargeFileAndChecksWhatItReads) {
  constexpr int64_t kTokens = (int64_t{300} << 20) / 2 / 5 * 5;
  write_file(recipe_.tokens, "");
  std::filesystem::resize_file(recipe_.tokens, 2 * kTokens);  // zeros that take no space on the disk
  const auto put = [&](int64_t token) {
    std::fstream(recipe_.tokens, std::ios::in | std::ios::out | std::ios::binary).seekp(2 * token).write("\xff\xff", 2);
  };
  put(40'000);  // in the second block of 64 KiB, which has no samples
  const Dataset dataset = open();
  EXPECT_EQ(sample(dataset, 1), std::vector<int64_t>(2 * kS, 0));
  EXPECT_TRUE(has(message<InputError>([&] { sample(dataset, 8000); }), "token 40000 has id 65535"));
  put(kTokens - 1);
  EXPECT_TRUE(has(refusal(), "token " + std::to_string(kTokens - 1) + " has id 65535"));
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (const int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::vector<bool> hit(static_cast<size_t>(size));
    const Permutation permutation(size, 99);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t index = permutation(i);
      ASSERT_TRUE(index >= 0 && index < size);
      EXPECT_FALSE(hit[static_cast<size_t>(index)]) << size;
      hit[static_cast<size_t>(index)] = true;
    }
  }
  EXPECT_THROW(Permutation(0, 1), std::invalid_argument);
  EXPECT_THROW(Permutation(5, 1)(5), std::out_of_range);
  EXPECT_LT(Permutation(int64_t{1} << 62, 1)(12345), int64_t{1} << 62);
}

TEST(Permutation, GivesEveryOrderOfAFew) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t epoch = 0; epoch < 2000; ++epoch) {
    const Permutation permutation(4, mix(7, epoch));
    orders.insert({permutation(0), permutation(1), permutation(2), permutation(3)});
  }
  EXPECT_EQ(orders.size(), 24u);
}

TEST(Permutation, PutsEachPlaceEquallyOftenInFront) {
  constexpr int64_t kSize = 10, kEpochs = 20'000;
  std::vector<double> front(kSize), second(kSize);
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation permutation(kSize, mix(3, epoch));
    ++front[static_cast<size_t>(permutation(0))];
    ++second[static_cast<size_t>((permutation(1) - permutation(0) + kSize) % kSize)];
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  for (int64_t i = 0; i < kSize; ++i) EXPECT_NEAR(front[static_cast<size_t>(i)], expected, 5 * std::sqrt(expected));
  for (int64_t i = 1; i < kSize; ++i) {  // neighbours do not stay neighbours
    EXPECT_NEAR(second[static_cast<size_t>(i)], kEpochs / 9.0, 6 * std::sqrt(kEpochs / 9.0));
  }
}

TEST(Permutation, StaysWhatItIs) {  // a resumed run needs the order that it began with
  std::vector<int64_t> indices;
  const Permutation permutation(1000, mix(42, 3));
  for (int64_t i = 0; i < 6; ++i) indices.push_back(permutation(i));
  EXPECT_EQ(indices, (std::vector<int64_t>{481, 453, 971, 505, 256, 792}));
}

}  // namespace
}  // namespace meshtrain
