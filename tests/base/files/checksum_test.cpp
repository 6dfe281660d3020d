#include "mesh/base/files/checksum.h"

#include <gtest/gtest.h>

#include <set>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

// The values are those of the reference implementation, so files written earlier stay readable.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum("", 0), 0x2d06800538d394c2u);
  const std::string text = "a";
  EXPECT_EQ(checksum(text.data(), text.size()), 0xe6c632b61e964e1fu);
}

TEST(Checksum, IsTheSameInParts) {
  const std::string text(5000, 'x');
  RunningChecksum running;
  for (size_t at = 0, size = 1; at < text.size(); at += size, size *= 3)
    running.add(std::string_view(text).substr(at, size));
  EXPECT_EQ(running.value(), checksum(text.data(), text.size()));
  EXPECT_EQ(running.value(), checksum(text.data(), text.size())) << "value() changes nothing";
}

TEST(Checksum, IsSixteenDigitsAndBack) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{0x0123456789abcdef}, ~uint64_t{0}}) {
    EXPECT_EQ(checksum_of_text(checksum_text(value)), value);
  }
  EXPECT_EQ(checksum_text(0xab), "00000000000000ab");
  for (const char* text : {"", "ab", "00000000000000AB", "00000000000000 b", "000000000000000ab"}) {
    EXPECT_EQ(checksum_of_text(text), std::nullopt) << text;
  }
}

class FingerprintTest : public ::testing::Test {
 protected:
  Fingerprint print_of(const std::string& bytes) const {
    testing::write_file(folder_.path() / "file", bytes);
    return fingerprint(folder_.path() / "file");
  }

  const testing::ScratchFolder folder_;
};

TEST_F(FingerprintTest, EveryByteOfASmallFileChangesIt) {
  std::string bytes(1000, 'x');
  std::set<uint64_t> sums = {print_of(bytes).checksum};
  for (const size_t at : {size_t{0}, size_t{500}, size_t{999}}) {
    bytes[at] = 'y';
    EXPECT_TRUE(sums.insert(print_of(bytes).checksum).second) << at;
  }
  EXPECT_EQ(print_of(bytes).bytes, 1000);
}

// A fingerprint reads 64 blocks of 64 KiB of a large file.
TEST_F(FingerprintTest, SizeBeginningAndEndOfALargeFileChangeIt) {
  std::string bytes((size_t{4} << 20) + 100'000, 'x');
  const Fingerprint first = print_of(bytes);
  EXPECT_EQ(print_of(bytes), first);
  EXPECT_NE(print_of(bytes + "x").bytes, first.bytes);
  for (const size_t at : {size_t{0}, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[at] = 'y';
    EXPECT_NE(print_of(changed), first) << at;
  }
  EXPECT_THROW(fingerprint(folder_.path() / "none"), InputError);
}

}  // namespace
}  // namespace meshtrain
