#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <vector>

#include "mesh/box.h"

namespace meshtrain {

/// A stored piece of a checkpoint: the tensor piece_name() of one of its files.
struct StoredPiece {
  size_t file;  ///< index in Manifest::files
  Box box;
  uint64_t checksum;
};

/// The pieces of one tensor, packed into 28 bytes each for a matrix: a checkpoint of thousands of ranks has millions of
/// them. Each access unpacks an element.
class StoredPieces {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = StoredPiece;
    using difference_type = std::ptrdiff_t;
    using pointer = const StoredPiece*;
    using reference = StoredPiece;

    Iterator(const StoredPieces& pieces, size_t index) : pieces_(&pieces), index_(index) {}
    StoredPiece operator*() const { return (*pieces_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    const StoredPieces* pieces_;
    size_t index_;
  };

  /// Makes an empty list for a tensor of `shape`.
  explicit StoredPieces(const std::vector<int64_t>& shape);

  /// Appends a piece, whose box must lie in the tensor. Throws std::overflow_error for a file whose number has more
  /// than 32 bits.
  void push_back(const StoredPiece& piece);

  size_t size() const { return words_.size() / stride_; }
  bool empty() const { return words_.empty(); }
  StoredPiece operator[](size_t index) const;
  StoredPiece front() const { return (*this)[0]; }
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

  /// Return the first index of a piece along dim 0, and its extent there; 0 and 1 in a tensor without dims.
  int64_t first_row(size_t index) const { return num_dims_ == 0 ? 0 : number(index, 0); }
  int64_t num_rows(size_t index) const { return num_dims_ == 0 ? 1 : number(index, num_dims_); }
  /// Returns true when the piece has elements of `box`, which has as many dims.
  bool intersects(size_t index, const Box& box) const;
  /// Returns the indices of the pieces, sorted by first_row().
  std::vector<uint32_t> by_row() const;

 private:
  /// Returns the n-th of the numbers of a box: where it begins along each dim, then its extents.
  int64_t number(size_t index, size_t n) const;

  size_t num_dims_;
  size_t words_per_number_;  // 2 where a dim needs more than 32 bits
  size_t stride_;            // words of a piece: file, checksum in two, numbers of its box
  std::deque<uint32_t> words_;
};

}  // namespace meshtrain
