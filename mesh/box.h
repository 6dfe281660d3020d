#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// A rectangular part of a global tensor: first index and extent for each dim.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> size;

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

/// Consecutive elements of a flat tensor.
struct Range {
  int64_t offset;
  int64_t numel;
};

/// Returns the part that two boxes of one tensor share; nothing when they are disjoint.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Returns the boxes that elements [begin, end) of a row-major tensor of `shape` fill, in order: the end of a row, full
/// rows, the beginning of a row. There are at most 2 dims - 1.
std::vector<Box> boxes_of(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// Returns the elements of `full` that lie in `box`: a view.
at::Tensor part(const at::Tensor& full, const Box& box);

/// Returns "[0:4, 16:32]": from the first index to the one after the last.
std::string describe(const Box& box);

}  // namespace meshtrain
