#include "runtime/program/watch/siphash.h"

#include <gtest/gtest.h>

#include <string>

namespace meshtrain {
namespace {

/// The vectors of its authors: key 00 01 ... 0f, bytes 00 01 02 and so on.
TEST(SipHash, IsThatOfItsAuthors) {
  Secret key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<unsigned char>(i);
  const auto of_first = [&](size_t count) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(i);
    return siphash(key, bytes);
  };
  EXPECT_EQ(of_first(0), 0x726fdb47dd0e0e31u);
  EXPECT_EQ(of_first(1), 0x74f839c593dc67fdu);
  EXPECT_EQ(of_first(2), 0x0d6c8009d9a94f5au);
  EXPECT_EQ(of_first(3), 0x85676696d7fb7e2du);
  EXPECT_EQ(of_first(7), 0xab0200f58b01d137u);
  EXPECT_EQ(of_first(15), 0xa129ca6149be45e5u);
}

}  // namespace
}  // namespace meshtrain
