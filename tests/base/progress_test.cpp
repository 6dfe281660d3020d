#include "mesh/base/progress.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(ProgressTest, SaysHowFarItIsAndHowLongItTakes) {
  Progress tokens("evaluation of m", 98765, "tokens");
  EXPECT_EQ(tokens.line(6), "evaluation of m: 0 of 98,765 tokens, 0:06 so far") << "a rate is not known";
  tokens.set(12345);
  EXPECT_EQ(tokens.line(10), "evaluation of m: 12,345 of 98,765 tokens, 1,235 tokens/s, 1:10 left");
  tokens.set(98765);
  EXPECT_EQ(tokens.line(60), "evaluation of m: 98,765 of 98,765 tokens, 1,646 tokens/s, 1:00 so far");

  Progress meshes("plan", 28, "meshes");
  meshes.advance();
  meshes.advance(4);
  EXPECT_EQ(meshes.line(10), "plan: 5 of 28 meshes, 0:46 left") << "a rate below 10/s is left out";
}

TEST(ProgressTest, KnowsNoTotal) {
  Progress reading("weights of m", 0, "bytes");
  EXPECT_EQ(reading.line(75), "weights of m: 1:15 so far");
  reading.advance(int64_t{3} << 30);
  EXPECT_EQ(reading.line(12), "weights of m: 3 GiB, 256 MiB/s, 0:12 so far");
}

TEST(ProgressTest, CountsWhatAnEarlierRunDidAsDoneAndNotAsSpeed) {
  Progress bytes("x.bin", int64_t{4} << 20, "bytes");
  bytes.start_at(int64_t{2} << 20);
  EXPECT_EQ(bytes.line(10), "x.bin: 2 MiB of 4 MiB, 0:10 so far");
  bytes.advance(int64_t{1} << 20);
  bytes.note("7 documents");
  EXPECT_EQ(bytes.line(10), "x.bin: 3 MiB of 4 MiB, 102.4 KiB/s, 0:10 left, 7 documents");
}

}  // namespace
}  // namespace meshtrain
