#include "mesh/base/philox.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

// Random123, tests/kat_vectors: philox4x32 with 10 rounds.
TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, 0xffffffffffffffff),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace meshtrain
