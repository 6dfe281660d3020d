#include "runtime/training/data/token_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;
using testing::write_ids;

template <typename Id>
void expect_round_trip(const std::string& dtype, const std::vector<int64_t>& ids) {
  const ScratchFolder folder;
  write_ids<Id>(folder.path() / "tokens", ids);
  const TokenFile tokens(folder.path() / "tokens", dtype);
  ASSERT_EQ(tokens.size(), static_cast<int64_t>(ids.size()));
  EXPECT_EQ(tokens.width(), static_cast<int64_t>(sizeof(Id)));
  std::vector<int64_t> read(ids.size());
  tokens.read(0, tokens.size(), read.data());
  EXPECT_EQ(read, ids);
  for (int64_t first = 0; first < tokens.size(); ++first) {
    int64_t one = -1;
    tokens.read(first, 1, &one);
    EXPECT_EQ(one, ids[static_cast<size_t>(first)]);
    for (int64_t count = 1; first + count <= tokens.size(); ++count) {
      const IdRange range = tokens.range(first, count);
      EXPECT_EQ(range.least, *std::min_element(ids.begin() + first, ids.begin() + first + count))
          << first << " + " << count;
      EXPECT_EQ(range.most, *std::max_element(ids.begin() + first, ids.begin() + first + count))
          << dtype << " " << first << " " << count;
    }
  }
  EXPECT_EQ(tokens.range(0, 0).most, -1);
}

TEST(TokenFile, ReadsEachDtypeToItsLargestId) {
  expect_round_trip<uint8_t>("uint8", {0, 127, 128, 1, 255, 3, 200, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 254});
  expect_round_trip<uint16_t>("uint16", {7, 32767, 32768, 0, 1, 2, 3, 65535, 5, 40000});
  expect_round_trip<uint32_t>("uint32", {7, 2147483647, 2147483648, 0, 1, 4294967295, 3, 128256});
}

TEST(TokenFile, RefusesAMissingAnEmptyAndACutFile) {
  const ScratchFolder folder;
  const auto open = [&](const std::string& name, const std::string& dtype) {
    return message<InputError>([&] { TokenFile file(folder.path() / name, dtype); });
  };
  write_file(folder.path() / "empty", "");
  write_file(folder.path() / "cut", "12345");
  EXPECT_TRUE(has(open("none", "uint16"), "No such file"));
  EXPECT_TRUE(has(open("empty", "uint16"), "is empty"));
  EXPECT_TRUE(has(open("cut", "uint16"), "5 bytes are not a whole number of uint16 tokens"));
  EXPECT_TRUE(has(open("cut", "uint32"), "5 bytes"));
  EXPECT_EQ(open("cut", "uint8"), "");
  EXPECT_TRUE(has(open("cut", "int16"), "\"int16\" is not one of uint8, uint16, uint32"));
}

TEST(TokenFile, DoesNotReadBeyondItsEnd) {
  const ScratchFolder folder;
  write_file(folder.path() / "tokens", "12345");
  const TokenFile tokens(folder.path() / "tokens", "uint8");
  std::vector<int64_t> out(10);
  EXPECT_THROW(tokens.read(3, 3, out.data()), std::out_of_range);
  EXPECT_THROW(tokens.read(-1, 1, out.data()), std::out_of_range);
  EXPECT_THROW(tokens.read(0, INT64_MAX, out.data()), std::out_of_range);
  EXPECT_THROW(tokens.range(6, 0), std::out_of_range);
}

}  // namespace
}  // namespace meshtrain
