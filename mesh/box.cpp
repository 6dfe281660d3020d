#include "mesh/box.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace meshtrain {

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

}  // namespace meshtrain
