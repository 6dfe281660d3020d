#include "runtime/optimizer/keepers.h"

#include <algorithm>

namespace meshtrain {

KeeperPlaces::KeeperPlaces(const MeshLayout& layout, const std::vector<std::string>& axes, int64_t num_shards)
    : size_(layout.size()), num_shards_(num_shards) {
  int64_t stride = size_;
  bool is_outer = true;
  for (const Axis& axis : layout.axes()) {
    stride /= axis.size;
    const Digit digit{stride, axis.size, std::find(axes.begin(), axes.end(), axis.name) != axes.end()};
    if (axis.name == "tp") {
      tp_ = digit;
    } else if (axis.name == "dp" || axis.name == "cp") {
      (is_outer ? outer_ : inner_) = digit;
      is_outer = false;
    }
  }
}

KeeperPlaces::Place KeeperPlaces::of(int64_t rank) const {
  const int64_t tp = tp_.of(rank), outer = outer_.of(rank), inner = inner_.of(rank);
  if (outer_.is_cut && inner_.is_cut) {
    const int64_t position = outer * inner_.size + inner;
    return {tp, position % num_shards_, position / num_shards_};
  }
  if (outer_.is_cut) return {tp, outer % num_shards_, outer / num_shards_ * inner_.size + inner};
  return {tp, inner % num_shards_, outer * (inner_.size / num_shards_) + inner / num_shards_};
}

}  // namespace meshtrain
