// The files of a data set, with any bytes, are read as samples or refused in one line.

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <sstream>

#include "mesh/base/error.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/training/data/dataset.h"
#include "tests/runtime/training/data/megatron_files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kS = 8, kVocabulary = 300;

/// Reads everything in every way. Returns whether that was possible.
bool expect_no_surprise(const SourceOptions& recipe) {
  const auto one_line = [](const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  };
  try {
    std::ostringstream text;
    inspect_tokens(text, recipe.tokens, recipe.dtype, 4, 7, nullptr, 2);
  } catch (const InputError& error) {
    one_line(error);
  }
  try {
    const Dataset dataset(recipe, kS, kVocabulary, 1);
    for (int64_t g = 0; g < std::min<int64_t>(dataset.num_samples(), 200); ++g) {
      std::vector<int64_t> inputs(kS), labels(kS);
      int64_t before = 0;
      for (const int64_t start : dataset.read(g, inputs.data(), labels.data())) {
        EXPECT_TRUE(start > before && start < kS);
        before = start;
      }
      for (const int64_t id : inputs) EXPECT_TRUE(id >= 0 && id < kVocabulary);
      for (const int64_t id : labels) EXPECT_TRUE(id == kIgnoredLabel || (id >= 0 && id < kVocabulary));
    }
    return true;
  } catch (const InputError& error) {
    one_line(error);
    return false;
  }
}

std::string as_bytes(const std::vector<uint16_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()};
}

class DataFuzz : public ::testing::Test {
 protected:
  DataFuzz() : ids_(2048) {  // a page, after which nothing is mapped
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<uint16_t>(i * 7 % 250);
    recipe_.tokens = folder_.path() / "x.bin";
    recipe_.layout = SampleLayout::Stream;
  }

  ScratchFolder folder_;
  SourceOptions recipe_;
  std::vector<uint16_t> ids_;
  std::mt19937_64 random_{1};
};

TEST_F(DataFuzz, DamagedIndexes) {
  recipe_.dtype = "megatron";
  write_file(recipe_.tokens, as_bytes(ids_));
  MegatronFields full = megatron_fields(8, 2, {40, 1, 0, 300, 700, 2, 5, 1000});
  full.documents = {0, 1, 3, 3, 6, 8};
  MegatronFields apart = full;
  std::reverse(apart.pointers.begin(), apart.pointers.end());
  apart.lengths.assign(8, 20);
  int read = 0;
  for (int round = 0; round < 3000; ++round) {
    recipe_.documents = round % 2 == 0 ? std::optional<int64_t>(kDocumentsOfIndex) : std::nullopt;
    write_file(folder_.path() / "x.idx", damaged((round % 4 < 2 ? full : apart).bytes(), random_));
    read += expect_no_surprise(recipe_);
  }
  EXPECT_GT(read, 10);
  EXPECT_LT(read, 2900);
}

TEST_F(DataFuzz, IndexesOfChangedNumbers) {
  recipe_.dtype = "megatron";
  recipe_.documents = kDocumentsOfIndex;
  write_file(recipe_.tokens, as_bytes(ids_));
  const std::vector<int64_t> odd = {0,
                                    1,
                                    -1,
                                    2,
                                    4096,
                                    4095,
                                    int64_t{1} << 31,
                                    int64_t{1} << 32,
                                    -2,
                                    4094,
                                    2048,
                                    4097,
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::max() - 1,
                                    std::numeric_limits<int64_t>::min()};
  for (int round = 0; round < 3000; ++round) {
    MegatronFields fields = megatron_fields(static_cast<uint8_t>(random_() % 10), 2, {40, 1, 0, 300, 700, 2, 5, 1000});
    for (uint64_t changes = random_() % 3; changes > 0; --changes) {
      const int64_t number = odd[random_() % odd.size()];
      switch (random_() % 3) {
        case 0:
          fields.lengths[random_() % 8] = static_cast<int32_t>(number);
          break;
        case 1:
          fields.pointers[random_() % 8] = number;
          break;
        default:
          fields.documents[random_() % 9] = number;
      }
    }
    write_file(folder_.path() / "x.idx", fields.bytes());
    expect_no_surprise(recipe_);
  }
}

TEST_F(DataFuzz, DamagedTokensAndMasks) {
  recipe_.loss_mask = folder_.path() / "mask";
  recipe_.ignore_id = 9;
  int read = 0;
  for (int round = 0; round < 2000; ++round) {
    recipe_.dtype = std::vector<const char*>{"uint8", "uint16", "uint32"}[random_() % 3];
    recipe_.layout = random_() % 2 == 0 ? SampleLayout::Stream : SampleLayout::Records;
    recipe_.documents = random_() % 2 == 0 ? std::optional<int64_t>(7) : std::nullopt;
    const bool full = random_() % 2 == 0;
    write_file(recipe_.tokens, full ? as_bytes(ids_) : damaged(as_bytes(ids_), random_));
    const int64_t tokens =
        static_cast<int64_t>(std::filesystem::file_size(recipe_.tokens)) / token_width(recipe_.dtype);
    const std::string mask(static_cast<size_t>(tokens), '\1');
    write_file(recipe_.loss_mask, random_() % 2 == 0 ? mask : damaged(mask, random_));
    read += expect_no_surprise(recipe_);
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace meshtrain::testing
