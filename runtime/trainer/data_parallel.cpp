#include "runtime/trainer/data_parallel.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "mesh/error.h"
#include "mesh/host_map.h"

namespace meshtrain {
namespace {

/// How many neighbours among the ranks that are cut over share a host, when that is the same number everywhere; the
/// same result on every rank.
int64_t ranks_of_a_host(const MeshLayout& layout, const std::vector<std::string>& axes, const HostMap& hosts) {
  int64_t least = layout.size(), most = 1, common = 0;  // `common`: the largest number that divides all
  bool together = true;                                 // those of a host are neighbours
  for (int64_t first = 0; first < layout.size(); ++first) {
    if (std::any_of(axes.begin(), axes.end(), [&](const auto& axis) { return layout.coordinate(first, axis) != 0; })) {
      continue;
    }
    const std::vector<int64_t> ranks = layout.group(axes, first);
    std::set<int> seen;
    for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
      const int host = hosts.host_of(ranks[begin]);
      while (end < ranks.size() && hosts.host_of(ranks[end]) == host) ++end;
      const auto neighbours = static_cast<int64_t>(end - begin);
      least = std::min(least, neighbours);
      most = std::max(most, neighbours);
      common = std::gcd(common, neighbours);
      together = seen.insert(host).second && together;
    }
  }
  if (together && least == most) return most;
  std::string problem =
      "ranks of several hosts alternate here: start neighbours on one host (mpirun --map-by slot, "
      "srun --distribution=block)";
  if (together) {
    problem = "which are " + std::to_string(least) + " on one and " + std::to_string(most) +
              " on another: start as many on each";
  }
  const std::string fitting = common > 1
                                  ? ": " + std::to_string(common) + ", the largest whose copies have one host each"
                                  : "; some copies will then lie on several hosts";
  throw InputError("parallel.fsdp: hybrid_shard cuts over the ranks of a host, " + std::string(together ? "" : "but ") +
                   problem + ", or set parallel.fsdp.shard_size" + fitting);
}

/// Splits for HYBRID_SHARD: runs of `shard_size` ranks along the cut axes share a model, the others repeat it. They are
/// splits of the world, so that those of all tp ranks sum in one order.
class Hybrid {
 public:
  Hybrid(const DeviceMesh& mesh, const ShardingChoice& choice, int64_t shard_size)
      : mesh_(mesh),
        axes_(choice.axes.begin(), choice.axes.end()),
        shard_size_(shard_size),
        places_(mesh.layout(), choice.axes, shard_size) {}

  Group shards() const {
    const Group& all = mesh_.group(axes_);
    const auto first = all.ranks().begin() + all.rank() / shard_size_ * shard_size_;
    return mesh_.world().split({first, first + shard_size_}, "shards");
  }

  /// Of the ranks that differ along `axes`, those that hold the same place of their shard group.
  Group same_place(const std::set<std::string>& axes, const std::string& name) const {
    const Group& all = mesh_.group(axes);
    std::vector<int> members;
    for (const int64_t rank : all.ranks()) {
      if (places_.of(rank).shard == places_.of(mesh_.rank()).shard) members.push_back(static_cast<int>(rank));
    }
    return mesh_.world().split(members, name);
  }

 private:
  const DeviceMesh& mesh_;
  std::set<std::string> axes_;
  int64_t shard_size_;
  KeeperPlaces places_;
};

/// Without a queue for gathers.
DataParallel make_groups(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh) {
  const FsdpRecipe& asked = recipe.parallel.fsdp;
  const ShardingChoice& choice = plan.sharding;
  const std::set<std::string> cut(choice.axes.begin(), choice.axes.end());
  const bool over_cp = cut.contains("cp");

  DataParallel parallel;
  if (choice.mode != ShardingMode::NoShard) parallel.cut_axes = choice.axes;
  FsdpOptions& options = parallel.options;
  options.mode = choice.mode;
  options.summed_over = mesh.group(std::set<std::string>{"dp", "cp"});
  options.reshard_after_forward = asked.reshard_after_forward;
  options.accumulate_unsharded = asked.no_sync;
  options.prefetch = asked.prefetch;
  if (plan.precision.mixed) {
    options.shard_dtype = at::kFloat;
    options.reduce_dtype = plan.precision.mixed_reduce;
  }
  if (choice.hybrid) {
    const Hybrid hybrid(
        mesh, choice,
        asked.shard_size ? *asked.shard_size : ranks_of_a_host(mesh.layout(), choice.axes, HostMap::of(mesh.world())));
    options.shards = hybrid.shards();
    parallel.sums = hybrid.same_place({"dp", "cp"}, "replicas").with_purpose("dp.gradients");
    parallel.partial_sums = hybrid.same_place({"dp", "cp", "tp"}, "replicas_tp").with_purpose("tp.gradients");
    parallel.keepers = {mesh.world(), parallel.sums, {mesh.layout(), choice.axes, options.shards.size()}};
    return parallel;
  }
  parallel.sums = (over_cp ? Group() : mesh.group("cp")).with_purpose("cp.gradients");
  parallel.partial_sums =
      (over_cp ? mesh.group("tp") : mesh.group(std::set<std::string>{"cp", "tp"})).with_purpose("tp.gradients");
  if (choice.mode == ShardingMode::NoShard) {
    options.replicas = mesh.group("dp");
    parallel.keepers.copies = mesh.group(std::set<std::string>{"dp", "cp"});
  } else {
    options.shards = mesh.group(cut);
    parallel.keepers.copies = parallel.sums;
  }
  parallel.keepers.world = mesh.world();
  parallel.keepers.places = {mesh.layout(), choice.axes, options.shards.size()};
  return parallel;
}

}  // namespace

DataParallel make_data_parallel(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh) {
  DataParallel parallel = make_groups(recipe, plan, mesh);
  FsdpOptions& options = parallel.options;
  if (gathers_beside_reductions(options.mode) && options.shards.size() > 1) {
    options.gathers = options.shards.second_queue();
  }
  return parallel;
}

}  // namespace meshtrain
