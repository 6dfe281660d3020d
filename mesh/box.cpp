#include "mesh/box.h"

#include <ATen/ops/narrow.h>

#include <algorithm>
#include <stdexcept>

namespace meshtrain {
namespace {

/// Appends the boxes of elements [begin, end) of the slice that `box` selects by its dims before `dim`, of extent 1.
void add_boxes(const std::vector<int64_t>& shape, size_t dim, const Box& slice, int64_t begin, int64_t end,
               std::vector<Box>& boxes) {
  if (begin >= end) return;
  int64_t row = 1;
  for (size_t inner = dim + 1; inner < shape.size(); ++inner) row *= shape[inner];
  int64_t first = begin / row, last = end / row;
  const auto add_of_row = [&](int64_t index, int64_t from, int64_t to) {
    Box inside = slice;
    inside.start[dim] = index;
    inside.size[dim] = 1;
    add_boxes(shape, dim + 1, inside, from, to, boxes);
  };
  if (begin % row != 0) {
    add_of_row(first, begin % row, first == last ? end % row : row);
    if (first++ == last) return;
  }
  if (first < last) {
    Box rows = slice;
    rows.start[dim] = first;
    rows.size[dim] = last - first;
    boxes.push_back(std::move(rows));
  }
  add_of_row(last, 0, end % row);
}

}  // namespace

int64_t Box::numel() const {
  int64_t elements = 1;
  for (const int64_t extent : size) elements *= extent;
  return elements;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  if (a.size.size() != b.size.size()) {
    throw std::invalid_argument("boxes of " + std::to_string(a.size.size()) + " and " + std::to_string(b.size.size()) +
                                " dims are not of one tensor");
  }
  Box shared;
  for (size_t dim = 0; dim < a.size.size(); ++dim) {
    const int64_t begin = std::max(a.start[dim], b.start[dim]);
    const int64_t end = std::min(a.start[dim] + a.size[dim], b.start[dim] + b.size[dim]);
    if (begin >= end) return std::nullopt;
    shared.start.push_back(begin);
    shared.size.push_back(end - begin);
  }
  return shared;
}

std::vector<Box> boxes_of(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  const Box full{std::vector<int64_t>(shape.size(), 0), shape};
  if (shape.empty() && begin < end) return {full};
  add_boxes(shape, 0, full, begin, end, boxes);
  return boxes;
}

at::Tensor part(const at::Tensor& full, const Box& box) {
  at::Tensor view = full;
  for (size_t dim = 0; dim < box.start.size(); ++dim) {
    view = view.narrow(static_cast<int64_t>(dim), box.start[dim], box.size[dim]);
  }
  return view;
}

std::string describe(const Box& box) {
  std::string text = "[";
  for (size_t dim = 0; dim < box.start.size(); ++dim) {
    text +=
        (dim == 0 ? "" : ", ") + std::to_string(box.start[dim]) + ":" + std::to_string(box.start[dim] + box.size[dim]);
  }
  return text + "]";
}

}  // namespace meshtrain
