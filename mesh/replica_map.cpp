#include "mesh/replica_map.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace meshtrain {

ReplicaMap::ReplicaMap(const MeshLayout& layout, int64_t rank, std::vector<std::string> axes,
                       std::optional<int64_t> num_shards, const ReplicaRoles& roles)
    : size_(layout.size()), rank_(rank), num_shards_(num_shards.value_or(1)) {
  int64_t stride = size_;
  int num_token_axes = 0;
  for (const Axis& axis : layout.axes()) {
    stride /= axis.size;
    const Digit digit{stride, axis.size, std::find(axes.begin(), axes.end(), axis.name) != axes.end()};
    if (axis.name == roles.cut) {
      tp_ = digit;
    } else if (roles.tokens.contains(axis.name)) {
      (num_token_axes++ == 0 ? outer_ : inner_) = digit;
    } else if (axis.size > 1) {
      throw std::invalid_argument("mesh " + layout.describe() + ": ranks along " + axis.name + " have no role in " +
                                  "training: give each of them its own mesh, DeviceMesh::part() without that axis");
    }
  }
  const auto is_of_tokens = [&](const std::string& axis) { return roles.tokens.contains(axis); };
  if (num_token_axes > 2 || !std::ranges::all_of(axes, is_of_tokens)) {
    throw std::invalid_argument("mesh " + layout.describe() + ": replicas have at most two axes of tokens, and data " +
                                "parallelism is over these");
  }
  num_replicas_ = outer_.size * inner_.size / num_shards_;
  if (num_shards) cut_axes_ = std::move(axes);
}

ReplicaMap::ReplicaMap(const DeviceMesh& mesh, const std::vector<std::string>& axes, std::optional<int64_t> num_shards,
                       const ReplicaRoles& roles)
    : ReplicaMap(mesh.layout(), mesh.rank(), axes, num_shards, roles) {
  std::set<std::string> others = roles.tokens;
  world_ = mesh.world();
  parts_ = mesh.group(roles.cut);
  tokens_ = mesh.group(others);
  const Group& along_axes = mesh.group(std::set<std::string>(axes.begin(), axes.end()));
  if (num_shards && *num_shards < along_axes.size()) {
    std::set<std::string> all = roles.tokens;
    all.insert(roles.cut);
    make_runs(along_axes, mesh.group(all));
    return;
  }
  (num_shards ? shards_ : full_replicas_) = along_axes;
  for (const std::string& axis : axes) others.erase(axis);
  remaining_ = mesh.group(others).with_purpose("cp.gradients");
  others.insert(roles.cut);
  remaining_partial_ = mesh.group(others).with_purpose("tp.gradients");
  replicas_ = num_shards ? remaining_ : tokens_;
}

ReplicaMap ReplicaMap::own_part() const {
  ReplicaMap own = *this;
  own.rank_ = outer_.of(rank_) * inner_.size + inner_.of(rank_);
  own.size_ = outer_.size * inner_.size;
  own.outer_.stride = inner_.size;
  own.inner_.stride = 1;
  own.tp_ = {};
  own.world_ = tokens_;
  own.parts_ = Group();
  own.remaining_partial_ = remaining_;
  return own;
}

// Splits of the world, so that those of all tp ranks sum in one order.
void ReplicaMap::make_runs(const Group& along_axes, const Group& everyone) {
  std::unordered_map<int64_t, int> on_mesh;  // by rank of the program, of which the mesh may be a part
  for (const int64_t rank : world_.ranks()) on_mesh.emplace(rank, static_cast<int>(on_mesh.size()));
  const auto with_the_same_shard = [&](const Group& group) {
    std::vector<int> members;
    for (const int64_t rank : group.ranks()) {
      if (part_of(on_mesh.at(rank)).shard == part().shard) members.push_back(on_mesh.at(rank));
    }
    return members;
  };
  std::vector<int> run;
  const auto first = along_axes.ranks().begin() + along_axes.rank() / num_shards_ * num_shards_;
  std::transform(first, first + num_shards_, std::back_inserter(run), [&](int64_t rank) { return on_mesh.at(rank); });
  shards_ = world_.split(run, "shards");
  remaining_ = world_.split(with_the_same_shard(tokens_), "replicas").with_purpose("dp.gradients");
  remaining_partial_ = world_.split(with_the_same_shard(everyone), "replicas_tp").with_purpose("tp.gradients");
  replicas_ = remaining_;
}

ReplicaMap::Part ReplicaMap::part_of(int64_t rank) const {
  const int64_t tp = tp_.of(rank), outer = outer_.of(rank), inner = inner_.of(rank);
  if (outer_.is_cut && inner_.is_cut) {
    const int64_t position = outer * inner_.size + inner;
    return {tp, position % num_shards_, position / num_shards_};
  }
  if (outer_.is_cut) return {tp, outer % num_shards_, outer / num_shards_ * inner_.size + inner};
  return {tp, inner % num_shards_, outer * (inner_.size / num_shards_) + inner / num_shards_};
}

Range ReplicaMap::owned(int64_t numel, int64_t full) const {
  const Part own = part();
  const int64_t share = (numel + num_replicas_ - 1) / num_replicas_;
  const int64_t end = std::min(share * (own.replica + 1), numel);
  int64_t begin = std::min(share * own.replica, numel);
  if (own.tp != 0) begin = std::max(begin, full);
  return {begin, std::max<int64_t>(end - begin, 0)};
}

}  // namespace meshtrain
