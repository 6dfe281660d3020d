#include "context_parallel/sequence_layout.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Kind = SequenceLayout::Kind;
using Chunks = std::vector<SequenceLayout::Chunk>;

std::string refusal(Kind kind, int64_t length, int ranks) {
  try {
    SequenceLayout(kind, length, ranks, 0);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(SequenceLayout, RanksPartitionTheSequence) {
  for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const int64_t length = 6 * ranks;
      std::vector<at::Tensor> held;
      for (int rank = 0; rank < ranks; ++rank) {
        const SequenceLayout layout(kind, length, ranks, rank);
        const at::Tensor positions = layout.positions();
        EXPECT_EQ(layout.local_length(), 6);
        ASSERT_EQ(positions.sizes(), at::IntArrayRef({6}));
        EXPECT_EQ(positions.scalar_type(), at::kLong);
        held.push_back(positions);
      }
      EXPECT_TRUE(std::get<0>(at::cat(held).sort()).equal(at::arange(length))) << "over " << ranks << " ranks";
    }
  }
}

TEST(SequenceLayout, ContiguousRankHoldsOneChunk) {
  const SequenceLayout layout(Kind::Contiguous, 12, 4, 2);
  EXPECT_EQ(layout.chunks(2), (Chunks{{6, 3}}));
  EXPECT_TRUE(layout.positions().equal(at::arange(6, 9)));
}

TEST(SequenceLayout, ZigZagRankHoldsItsChunkAndTheMirroredOne) {
  const SequenceLayout layout(Kind::ZigZag, 16, 4, 1);
  EXPECT_EQ(layout.chunks(0), (Chunks{{0, 2}, {14, 2}}));
  EXPECT_EQ(layout.chunks(1), (Chunks{{2, 2}, {12, 2}}));
  EXPECT_EQ(layout.chunks(3), (Chunks{{6, 2}, {8, 2}}));
  EXPECT_TRUE(layout.positions().equal(at::tensor({2, 3, 12, 13}, at::kLong)));
}

TEST(SequenceLayout, OneRankHoldsAnyLength) {
  EXPECT_EQ(SequenceLayout::unsharded(7).chunks(0), (Chunks{{0, 7}}));
  EXPECT_EQ(SequenceLayout(Kind::ZigZag, 7, 1, 0).chunks(0), (Chunks{{0, 7}}));
}

TEST(SequenceLayout, TakesTheLocalPartAlongAnyDim) {
  const at::Tensor tokens = at::arange(3 * 16).view({3, 16});
  const SequenceLayout zigzag(Kind::ZigZag, 16, 2, 0);
  EXPECT_TRUE(zigzag.take(tokens, 1).equal(tokens.index_select(1, zigzag.positions())));
  EXPECT_TRUE(zigzag.take(tokens.t(), 0).equal(tokens.t().index_select(0, zigzag.positions())));
  EXPECT_TRUE(zigzag.take(tokens, -1).equal(zigzag.take(tokens, 1)));

  const at::Tensor part = SequenceLayout(Kind::Contiguous, 16, 2, 1).take(tokens, 1);
  EXPECT_TRUE(part.equal(tokens.narrow(1, 8, 8)));
  EXPECT_TRUE(part.is_alias_of(tokens)) << "one chunk is a view";
  EXPECT_THROW(zigzag.take(tokens, 0), std::invalid_argument);
}

TEST(SequenceLayout, RefusesLengthsThatDoNotDivide) {
  EXPECT_EQ(refusal(Kind::Contiguous, 10, 4),
            "train.sequence_length is 10, which contiguous context parallelism over cp=4 cannot cut into 4 equal "
            "chunks; make it a multiple of 4 or change cp in parallel.mesh");
  EXPECT_EQ(refusal(Kind::ZigZag, 12, 4),
            "train.sequence_length is 12, which zigzag context parallelism over cp=4 cannot cut into 8 equal chunks; "
            "make it a multiple of 8 or change cp in parallel.mesh, or set parallel.context.layout: contiguous");
  EXPECT_EQ(refusal(Kind::ZigZag, 10, 4),
            "train.sequence_length is 10, which zigzag context parallelism over cp=4 cannot cut into 8 equal chunks; "
            "make it a multiple of 8 or change cp in parallel.mesh");
  EXPECT_EQ(refusal(Kind::Contiguous, 0, 1), "train.sequence_length is 0; it must be at least 1");
  EXPECT_THROW(SequenceLayout(Kind::Contiguous, 8, 2, 2), std::invalid_argument);
}

TEST(SequenceLayout, CarriesDocuments) {
  const SequenceLayout layout(Kind::ZigZag, 16, 2, 1);
  EXPECT_TRUE(layout.documents().empty());
  const SequenceLayout cut = layout.with_documents({{1, 9}, {}});
  EXPECT_EQ(cut.documents(), (std::vector<std::vector<int64_t>>{{1, 9}, {}}));
  EXPECT_EQ(cut.chunks(1), layout.chunks(1));
  EXPECT_TRUE(layout.documents().empty()) << "the layout it was made from is unchanged";
  for (const std::vector<int64_t>& starts : {std::vector<int64_t>{0}, {16}, {5, 5}, {5, 4}}) {
    EXPECT_THROW(layout.with_documents({starts}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace meshtrain
