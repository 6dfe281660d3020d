#include "runtime/training/checkpoint/stored_pieces.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace meshtrain {
namespace {

constexpr size_t kBeforeBox = 3;  // words
constexpr uint64_t kMostInWord = std::numeric_limits<uint32_t>::max();

bool fits_in_words(const std::vector<int64_t>& shape) {
  return std::all_of(shape.begin(), shape.end(),
                     [](int64_t size) { return static_cast<uint64_t>(size) <= kMostInWord; });
}

}  // namespace

StoredPieces::StoredPieces(const std::vector<int64_t>& shape)
    : num_dims_(shape.size()),
      words_per_number_(fits_in_words(shape) ? 1 : 2),
      stride_(kBeforeBox + 2 * num_dims_ * words_per_number_) {}

void StoredPieces::push_back(const StoredPiece& piece) {
  if (piece.file > kMostInWord) throw std::overflow_error("it has more files than can be counted");
  words_.push_back(static_cast<uint32_t>(piece.file));
  words_.push_back(static_cast<uint32_t>(piece.checksum));
  words_.push_back(static_cast<uint32_t>(piece.checksum >> 32));
  for (const std::vector<int64_t>* numbers : {&piece.box.start, &piece.box.size}) {
    for (const int64_t number : *numbers) {
      words_.push_back(static_cast<uint32_t>(number));
      if (words_per_number_ == 2) words_.push_back(static_cast<uint32_t>(static_cast<uint64_t>(number) >> 32));
    }
  }
}

StoredPiece StoredPieces::operator[](size_t index) const {
  const size_t at = index * stride_;
  StoredPiece piece{words_[at], {}, words_[at + 1] | static_cast<uint64_t>(words_[at + 2]) << 32};
  for (size_t dim = 0; dim < num_dims_; ++dim) {
    piece.box.start.push_back(number(index, dim));
    piece.box.size.push_back(number(index, num_dims_ + dim));
  }
  return piece;
}

bool StoredPieces::intersects(size_t index, const Box& box) const {
  for (size_t dim = 0; dim < num_dims_; ++dim) {
    const int64_t start = number(index, dim), size = number(index, num_dims_ + dim);
    if (start >= box.start[dim] + box.size[dim] || box.start[dim] >= start + size) return false;
  }
  return true;
}

std::vector<uint32_t> StoredPieces::by_row() const {
  std::vector<std::pair<int64_t, uint32_t>> rows(size());
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = {first_row(i), i};
  std::sort(rows.begin(), rows.end());
  std::vector<uint32_t> order;
  order.reserve(rows.size());
  for (const auto& [row, index] : rows) order.push_back(index);
  return order;
}

int64_t StoredPieces::number(size_t index, size_t n) const {
  const size_t at = index * stride_ + kBeforeBox + n * words_per_number_;
  if (words_per_number_ == 1) return words_[at];
  return static_cast<int64_t>(words_[at] | static_cast<uint64_t>(words_[at + 1]) << 32);
}

}  // namespace meshtrain
