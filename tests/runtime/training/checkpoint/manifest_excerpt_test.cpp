#include "runtime/training/checkpoint/manifest_excerpt.h"

#include <gtest/gtest.h>

#include <random>

namespace meshtrain {
namespace {

/// Returns a manifest of "model.x" [rows, 8]: each of `ranks` files has a range of rows, cut into two columns.
Manifest manifest_of(int64_t ranks, int64_t rows) {
  Manifest manifest;
  manifest.head.state = {12, 96, 11, 1, TrainingState::LossScale{1024, 5}};
  manifest.head.recipe = "name: x";
  std::vector<StoredPiece> pieces;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    manifest.files.push_back({"rank-" + std::to_string(100000 + rank), static_cast<uint64_t>(rank) * 3});
    const int64_t begin = rows * rank / ranks, end = rows * (rank + 1) / ranks;
    for (const int64_t column : {0, 5}) {
      const Box box{{begin, column}, {end - begin, column == 0 ? 5 : 3}};
      pieces.push_back({static_cast<size_t>(rank), box, static_cast<uint64_t>(rank * 10 + column)});
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937(1));
  StoredTensor tensor(at::kFloat, {rows, 8});
  for (const StoredPiece& piece : pieces) tensor.pieces.push_back(piece);
  manifest.tensors.emplace("model.x", std::move(tensor));
  return manifest;
}

Piece wanted(const std::string& tensor, const std::vector<int64_t>& shape, const Box& box) {
  return {tensor, shape, box, {}};
}

TEST(ManifestExcerpt, HasThePiecesThatABoxNeedsAndNoOthers) {
  const Manifest manifest = manifest_of(7, 50);
  const ManifestIndex index(manifest);
  const StoredTensor& full = manifest.tensors.at("model.x");
  for (int64_t begin = 0; begin < 50; ++begin) {
    for (int64_t size = 1; begin + size <= 50; ++size) {
      for (const auto& [column, columns] : {std::pair<int64_t, int64_t>{0, 8}, {6, 1}, {1, 3}}) {
        const Box box{{begin, column}, {size, columns}};
        const Manifest excerpt = unpack_excerpt(packed(
            index.excerpt(unpack_pieces(packed({wanted("model.x", {50, 8}, box), wanted("model.x", {50, 8}, box)})))));
        const StoredTensor& tensor = excerpt.tensors.at("model.x");
        ASSERT_EQ(tensor.dtype, at::kFloat);
        ASSERT_EQ(tensor.shape, full.shape);
        std::vector<std::tuple<std::string, uint64_t, uint64_t>> expected, found;
        for (const StoredPiece& piece : full.pieces) {
          if (!intersect(piece.box, box)) continue;
          const StoredFile& file = manifest.files[piece.file];
          expected.emplace_back(file.name, file.header, piece.checksum);
        }
        for (const StoredPiece& piece : tensor.pieces) {
          const StoredFile& file = excerpt.files.at(piece.file);
          found.emplace_back(file.name, file.header, piece.checksum);
          ASSERT_TRUE(intersect(piece.box, box));
        }
        std::sort(expected.begin(), expected.end());
        std::sort(found.begin(), found.end());
        ASSERT_EQ(found, expected) << describe(box);
        ASSERT_LE(excerpt.files.size(), tensor.pieces.size());
      }
    }
  }
}

TEST(ManifestExcerpt, SaysTheStateAndWhichTensorsThereAre) {
  const Manifest manifest = manifest_of(2, 4);
  const Box row{{0, 0}, {1, 8}};
  const Manifest excerpt = unpack_excerpt(
      packed(ManifestIndex(manifest).excerpt({wanted("model.y", {4, 8}, row), wanted("model.x", {5, 8}, row)})));
  EXPECT_FALSE(excerpt.tensors.contains("model.y"));
  EXPECT_EQ(excerpt.tensors.at("model.x").shape, (std::vector<int64_t>{4, 8})) << "of another shape, for the message";
  EXPECT_TRUE(excerpt.tensors.at("model.x").pieces.empty());
  EXPECT_EQ(excerpt.head.state.step, 12);
  EXPECT_EQ(excerpt.head.state.num_samples, 96);
  EXPECT_EQ(excerpt.head.state.num_updates, 11);
  EXPECT_EQ(excerpt.head.state.num_skipped, 1);
  ASSERT_TRUE(excerpt.head.state.loss_scale);
  EXPECT_EQ(excerpt.head.state.loss_scale->value, 1024);
  EXPECT_EQ(excerpt.head.state.loss_scale->num_finite, 5);
  EXPECT_TRUE(excerpt.head.recipe.empty());
}

// A rank of 16,384 gets as much about its pieces as a rank of 16; only larger numbers take a byte more.
TEST(ManifestExcerpt, OfARankDoesNotGrowWithTheRanks) {
  const auto bytes = [](int64_t ranks) {
    const Manifest manifest = manifest_of(ranks, 4 * ranks);
    return packed(ManifestIndex(manifest).excerpt({wanted("model.x", {4 * ranks, 8}, {{8, 0}, {4, 8}})})).size();
  };
  EXPECT_LT(bytes(16384), bytes(16) + 16);
  EXPECT_LT(bytes(16384), 150u);
}

TEST(ManifestExcerpt, BytesThatEndTooSoonAreRefused) {
  const std::string bytes = packed(manifest_of(1, 2));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(unpack_excerpt(bytes.substr(0, size)), std::runtime_error) << size;
  }
}

}  // namespace
}  // namespace meshtrain
