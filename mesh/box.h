#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace meshtrain {

/// A rectangular part of a global tensor: first index and extent for each dim.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> size;

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

/// The part that two boxes of one tensor share; nothing when they are apart.
std::optional<Box> intersect(const Box& a, const Box& b);

}  // namespace meshtrain
