#include "mesh/backends/mpi/rank_pattern.h"

#include <algorithm>
#include <cstdint>

namespace meshtrain {
namespace {

/// The largest factor of `number` between 2 and `most`; its least prime factor where all are larger.
int factor_of(int number, int most) {
  for (int factor = std::min(number, most); factor > 1; --factor) {
    if (number % factor == 0) return factor;
  }
  for (int64_t factor = most + 1; factor * factor <= number; ++factor) {
    if (number % factor == 0) return static_cast<int>(factor);
  }
  return number;
}

}  // namespace

int RankTree::levels() const {
  int levels = 0;
  for (int64_t run = 1; run < size_; run *= fan_out_) ++levels;
  return levels;
}

std::vector<int> RankTree::members(int rank, int level) const {
  int64_t stride = 1;
  for (int i = 0; i < level; ++i) stride *= fan_out_;
  if (rank % stride != 0) return {};
  std::vector<int> members;
  const int64_t leader = rank - rank % (stride * fan_out_);
  for (int64_t member = leader; member < std::min<int64_t>(leader + stride * fan_out_, size_); member += stride) {
    members.push_back(static_cast<int>(member));
  }
  return members;
}

RankGrid::RankGrid(int size, int fan_out) : strides_{1} {
  for (int rest = size; rest > 1; rest /= radices_.back()) {
    radices_.push_back(factor_of(rest, fan_out));
    strides_.push_back(strides_.back() * radices_.back());
  }
}

}  // namespace meshtrain
