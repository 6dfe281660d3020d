#include "context_parallel/choice.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

using Algorithm = ContextAlgorithm;
using Kind = SequenceLayout::Kind;

ContextChoice choose(const ContextShape& shape, std::optional<Algorithm> algorithm = {},
                     std::optional<Kind> layout = {}) {
  return choose_context(shape, algorithm, layout);
}

void expect(const ContextChoice& choice, Algorithm algorithm, Kind layout, const std::string& reason) {
  EXPECT_STREQ(name(choice.algorithm), name(algorithm));
  EXPECT_STREQ(name(choice.layout), name(layout));
  EXPECT_NE(choice.reason.find(reason), std::string::npos) << choice.reason;
}

TEST(Choice, LongPartsGoRound) {
  expect(choose({8192, 32, 8, 4}), Algorithm::Ring, Kind::ZigZag, "2048 tokens a rank are enough to hide the hops");
  expect(choose({131072, 32, 8, 64}), Algorithm::Ring, Kind::ZigZag, "2048 tokens");
}

// In contiguous parts every query sees as many keys, and only the borders travel.
TEST(Choice, WindowsSuitContiguousParts) {
  expect(choose({8192, 32, 8, 4, /*window=*/1024}), Algorithm::Ring, Kind::Contiguous, "enough to hide the hops");
  expect(choose({8192, 32, 8, 4, 1024}, {}, Kind::ZigZag), Algorithm::Ring, Kind::ZigZag, "enough");
  expect(choose({8192, 32, 8, 4, 1024}, {}, Kind::Contiguous), Algorithm::Ring, Kind::Contiguous, "enough");
  expect(choose({8192, 32, 8, 4, 8192}), Algorithm::Ring, Kind::ZigZag, "enough");
  expect(choose({4 * 1025, 8, 4, 4, 64}), Algorithm::Ring, Kind::Contiguous, "enough");
  expect(choose({500, 32, 2, 2, 64}), Algorithm::AllGather, Kind::Contiguous, "too few");
}

TEST(Choice, ShortPartsAreGathered) {
  expect(choose({500, 32, 4, 2}), Algorithm::AllGather, Kind::ZigZag, "250 tokens a rank are too few");
}

TEST(Choice, ManyHeadsOfShortPartsAreExchanged) {
  // One key and value head for each query head: gathered they have c / 2 times the bytes that Ulysses sends.
  expect(choose({1024, 16, 16, 8}), Algorithm::Ulysses, Kind::Contiguous, "exchanging heads sends less");
  expect(choose({1024, 16, 2, 8}), Algorithm::AllGather, Kind::ZigZag, "too few");
}

TEST(Choice, WhatCannotBeEvenIsNoRing) {
  expect(choose({4 * 1025, 8, 4, 4}), Algorithm::Ulysses, Kind::Contiguous, "uneven");
  expect(choose({4 * 1025, 8, 2, 4}), Algorithm::AllGather, Kind::Contiguous, "wait for its last rank");
  expect(choose({8192, 8, 4, 4}, {}, Kind::Contiguous), Algorithm::AllGather, Kind::Contiguous, "wait");
}

TEST(Choice, WhatIsAskedForIsTaken) {
  for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::AllGather, Algorithm::Ulysses}) {
    for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
      expect(choose({512, 8, 4, 4}, algorithm, kind), algorithm, kind, "as requested");
    }
  }
  expect(choose({512, 8, 4, 4}, Algorithm::Ring), Algorithm::Ring, Kind::ZigZag, "as requested");
  expect(choose({512, 8, 4, 4}, Algorithm::Ulysses), Algorithm::Ulysses, Kind::Contiguous, "as requested");
  expect(choose({516, 8, 4, 4}, Algorithm::Ring), Algorithm::Ring, Kind::Contiguous, "as requested");
}

TEST(Choice, HeadsThatUlyssesCannotShareOutAreRefused) {
  const auto refusal = [](int64_t heads, Algorithm algorithm) {
    try {
      check_heads({1024, heads, 1, 4}, algorithm);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(8, Algorithm::Ulysses), "");
  EXPECT_EQ(refusal(6, Algorithm::Ring), "");
  EXPECT_EQ(
      refusal(6, Algorithm::Ulysses),
      "parallel.context.algorithm: ulysses divides the 6 query heads of a tensor-parallel rank over cp=4, "
      "which does not divide them: use ring or all_gather, or a mesh with num_attention_heads a multiple of tp x cp");
}

}  // namespace
}  // namespace meshtrain
