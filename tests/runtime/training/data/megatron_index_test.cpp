#include "runtime/training/data/megatron_index.h"

#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "mesh/base/error.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/training/data/dataset.h"
#include "tests/runtime/training/data/megatron_files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

class MegatronTest : public ::testing::Test {
 protected:
  std::filesystem::path tokens() const { return folder_.path() / "corpus_text_document.bin"; }
  std::filesystem::path index() const { return folder_.path() / "corpus_text_document.idx"; }

  /// Writes ids `first`, `first` + 1, ... as a Megatron file whose index has them in this order.
  template <class Id>
  void write(const MegatronFields& fields, int64_t count, int64_t first = 10) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    write_ids<Id>(tokens(), ids);
    write_file(index(), fields.bytes());
  }
  TokenFile open() const { return TokenFile(tokens(), "megatron"); }
  std::vector<int64_t> all() const {
    const TokenFile file = open();
    std::vector<int64_t> ids(static_cast<size_t>(file.size()));
    file.read(0, file.size(), ids.data());
    return ids;
  }
  std::string inspected(int64_t count, std::optional<int64_t> separator = {}) const {
    std::ostringstream text;
    inspect_tokens(text, tokens(), "megatron", count, separator);
    return text.str();
  }
  std::string refusal() const {
    const std::string text = message<InputError>([&] { open(); });
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }

  ScratchFolder folder_;
};

TEST_F(MegatronTest, EveryWholeNumberIsRead) {
  const std::vector<int64_t> wanted = {10, 11, 12, 13, 14, 15};
  const auto expect_read = [&](const std::string& dtype) {
    EXPECT_EQ(all(), wanted) << dtype;
    EXPECT_EQ(open().dtype(), dtype);
    EXPECT_EQ(open().range(1, 3).least, 11);
    EXPECT_EQ(open().range(1, 3).most, 13);
  };
  const std::vector<int32_t> lengths = {1, 3, 2};
  write<uint8_t>(megatron_fields(1, 1, lengths), 6);
  expect_read("uint8");
  write<int8_t>(megatron_fields(2, 1, lengths), 6);
  expect_read("int8");
  write<int16_t>(megatron_fields(3, 2, lengths), 6);
  expect_read("int16");
  write<int32_t>(megatron_fields(4, 4, lengths), 6);
  expect_read("int32");
  write<int64_t>(megatron_fields(5, 8, lengths), 6);
  expect_read("int64");
  write<uint16_t>(megatron_fields(8, 2, lengths), 6);
  expect_read("uint16");
}

TEST_F(MegatronTest, SequencesAreTakenInTheOrderOfTheIndex) {
  MegatronFields fields;
  fields.lengths = {3, 0, 2, 4, 1};
  fields.pointers = {14, 0, 2, 6, 2};  // apart, out of order, adjacent, and one twice
  fields.documents = {0, 1, 1, 3, 5};
  write<uint16_t>(fields, 10);
  EXPECT_EQ(all(), (std::vector<int64_t>{17, 18, 19, 11, 12, 13, 14, 15, 16, 11}));
  const TokenFile file = open();
  for (int64_t first = 0; first < 10; ++first) {
    for (int64_t count = 0; first + count <= 10; ++count) {
      std::vector<int64_t> part(static_cast<size_t>(count), -1), full = all();
      file.read(first, count, part.data());
      EXPECT_EQ(part, std::vector<int64_t>(full.begin() + first, full.begin() + first + count));
      const IdRange range = file.range(first, count);
      if (count == 0) continue;
      EXPECT_EQ(range.least, *std::min_element(part.begin(), part.end()));
      EXPECT_EQ(range.most, *std::max_element(part.begin(), part.end()));
    }
  }
  EXPECT_THROW(file.read(10, 1, nullptr), std::out_of_range);
  EXPECT_EQ(file.index()->num_documents(), 4);
  EXPECT_EQ(file.index()->document_starts(0, 10), (std::vector<int64_t>{0, 3, 5})) << "the second has no tokens";
  EXPECT_EQ(file.index()->document_starts(1, 5), (std::vector<int64_t>{3}));
  EXPECT_EQ(file.index()->document_starts(6, 10), (std::vector<int64_t>{}));
}

TEST_F(MegatronTest, DocumentsOfTheIndexAreKeptApart) {
  write<uint16_t>(megatron_fields(8, 2, {2, 3, 1, 2, 9}), 17);
  SourceOptions recipe;
  recipe.tokens = tokens();
  recipe.dtype = "megatron";
  recipe.layout = SampleLayout::Stream;
  recipe.documents = kDocumentsOfIndex;
  for (const bool boundaries_count : {true, false}) {
    recipe.boundaries_count = boundaries_count;
    const Dataset dataset(recipe, 4, 100, 0);
    ASSERT_EQ(dataset.num_samples(), 4);
    const std::vector<std::vector<int64_t>> starts = {{2}, {1, 2}, {}, {}};
    for (int64_t g = 0; g < 4; ++g) {
      std::vector<int64_t> inputs(4), labels(4), wanted(4);
      EXPECT_EQ(dataset.read(g, inputs.data(), labels.data()), starts[static_cast<size_t>(g)]) << g;
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t next = 4 * g + i + 1;
        const bool begins = next == 2 || next == 5 || next == 6 || next == 8;  // 8 is the last label of sample 1
        wanted[static_cast<size_t>(i)] = begins && !boundaries_count ? kIgnoredLabel : 10 + next;
      }
      EXPECT_EQ(labels, wanted) << g;
    }
  }
  recipe.dtype = "uint16";
  std::filesystem::remove(index());
  EXPECT_TRUE(
      has(message<InputError>([&] { Dataset(recipe, 4, 100, 0); }), "data.documents: index needs a file of Megatron"));
}

TEST_F(MegatronTest, NegativeIdsAreNoTokens) {
  SourceOptions recipe;
  recipe.tokens = tokens();
  recipe.dtype = "megatron";
  recipe.layout = SampleLayout::Stream;
  const auto refused = [&] { return message<InputError>([&] { Dataset(recipe, 4, 1000, 0); }); };
  write<int8_t>(megatron_fields(2, 1, {6}), 6, -4);
  EXPECT_TRUE(has(refused(), "token 0 has id -4, which is negative")) << refused();
  write<int32_t>(megatron_fields(4, 4, {6}), 6, -1);
  EXPECT_TRUE(has(refused(), "token 0 has id -1, which is negative")) << refused();
  EXPECT_TRUE(has(message<InputError>([&] { inspected(4); }), "it has the id -1"));
  write<int64_t>(megatron_fields(5, 8, {6}), 6, int64_t{1} << 40);
  EXPECT_TRUE(has(refused(), "token 0 has id 1099511627776, beyond the vocabulary of 1000")) << refused();
  EXPECT_TRUE(has(inspected(4), "ids           1099511627776 to 1099511627781\n"));
}

TEST_F(MegatronTest, IsInspected) {
  write<int32_t>(megatron_fields(4, 4, {2, 3, 0, 4}), 9, 'a');
  const std::string text = inspected(4, 'c');
  EXPECT_TRUE(has(text, "tokens        9 of 4 bytes (Megatron's int32)\n")) << text;
  EXPECT_TRUE(has(text, "documents     4 by the index, of 0 to 4 tokens\n")) << text;
  EXPECT_TRUE(has(text, "documents     2 by separator 99, of 3 to 6 tokens\n")) << text;
  EXPECT_TRUE(has(text, "as text       abcd\n")) << text;
}

TEST_F(MegatronTest, WhatIsWrongIsSaid) {
  const auto with = [&](const std::function<void(MegatronFields&)>& change) {
    MegatronFields fields = megatron_fields(8, 2, {2, 3, 5});
    change(fields);
    write<uint16_t>(fields, 10);
    return refusal();
  };
  const std::string start = index().string() + ": ";
  EXPECT_EQ(with([](MegatronFields&) {}), "");
  EXPECT_EQ(with([](MegatronFields& f) { f.magic[2] = 'X'; }),
            start + "it does not begin as a Megatron index does (MMIDIDX)");
  EXPECT_EQ(with([](MegatronFields& f) { f.version = 2; }), start + "its version is 2, but only version 1 can be read");
  EXPECT_EQ(with([](MegatronFields& f) { f.code = 7; }),
            start +
                "its dtype has code 7, but must be one of 1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) and "
                "8 (uint16)");
  const std::string outside = " does not lie in the 20 bytes of the .bin file";
  EXPECT_EQ(with([](MegatronFields& f) { f.lengths[1] = -1; }),
            start + "sequence 1, -1 tokens of uint16 from byte 4 on," + outside);
  EXPECT_TRUE(has(with([](MegatronFields& f) { f.lengths[2] = 6; }), outside));
  EXPECT_TRUE(has(with([](MegatronFields& f) { f.lengths[0] = 2147483647; }), outside));
  EXPECT_TRUE(has(with([](MegatronFields& f) { f.pointers[2] = -2; }), outside));
  EXPECT_TRUE(has(with([](MegatronFields& f) { f.pointers[2] = 3; }), outside)) << "within a token";
  EXPECT_TRUE(has(with([](MegatronFields& f) { f.pointers[2] = std::numeric_limits<int64_t>::max() - 1; }), outside));
  const std::string bounds = start + "its bounds of documents do not go from 0 to its 3 sequences";
  EXPECT_EQ(with([](MegatronFields& f) { f.documents.clear(); }), bounds);
  EXPECT_EQ(with([](MegatronFields& f) { f.documents.back() = 2; }), bounds);
  EXPECT_EQ(with([](MegatronFields& f) { f.documents.front() = -1; }), bounds);
  EXPECT_EQ(with([](MegatronFields& f) { f.documents = {0, 2, 1, 3}; }), start + "document 1 ends before it begins");
  EXPECT_EQ(with([](MegatronFields& f) { f.pointers.pop_back(); }),
            start +
                "its 94 bytes do not fit its header, which counts 3 sequences (12 bytes each) and 4 bounds of "
                "documents (8 each): it was cut short, or is of another kind");
  EXPECT_EQ(with([](MegatronFields& f) { f = megatron_fields(8, 2, {}); }),
            tokens().string() + ": its index lists no tokens");
  std::string huge = megatron_fields(8, 2, {2, 3, 5}).bytes();
  std::memset(huge.data() + 18, 0xff, 16);  // both counts
  write_file(index(), huge);
  EXPECT_TRUE(has(refusal(), "counts 18446744073709551615 sequences"));
  write_file(index(), "MMIDIDX");
  EXPECT_TRUE(has(refusal(), "it does not begin as"));
  std::filesystem::remove(index());
  EXPECT_TRUE(
      has(refusal(), "cannot read " + index().string() + ": No such file or directory; it is missing if data prepare"));
  EXPECT_TRUE(has(message<InputError>([&] { TokenFile(folder_.path() / "x", "megatron"); }), "x: No such file"));
  write_file(folder_.path() / "x", "tokens");
  EXPECT_TRUE(has(message<InputError>([&] { TokenFile(folder_.path() / "x", "megatron"); }), "NAME.bin"));
}

TEST_F(MegatronTest, IsNotReadAsSomethingElseByMistake) {
  write<int32_t>(megatron_fields(4, 4, {6}), 6);
  EXPECT_EQ(message<InputError>([&] { TokenFile(tokens(), "uint16"); }),
            tokens().string() +
                ": corpus_text_document.idx next to it is a Megatron index: use dtype megatron, or "
                "move the index away to read the file as uint16");
  write_file(index(), "something else");
  EXPECT_EQ(TokenFile(tokens(), "uint16").size(), 12);
}

}  // namespace
}  // namespace meshtrain::testing
