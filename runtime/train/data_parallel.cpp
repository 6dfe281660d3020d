#include "runtime/train/data_parallel.h"

#include <algorithm>
#include <numeric>

#include "mesh/error.h"
#include "runtime/config/sharding.h"
#include "runtime/train/assemble.h"
#include "runtime/train/connect.h"

namespace meshtrain {
namespace {

/// How many of the ranks that are cut over share a host, when that is the same number everywhere; the same result on
/// every rank.
int64_t ranks_of_a_host(const MeshLayout& layout, const std::vector<std::string>& axes) {
  const int64_t on_host = ranks_on_this_host(static_cast<int>(layout.size()));
  int64_t least = layout.size(), most = 1;
  for (int64_t rank = 0; rank < layout.size(); ++rank) {
    const std::vector<int64_t> ranks = layout.group(axes, rank);
    const int64_t together =
        std::count_if(ranks.begin(), ranks.end(), [&](int64_t other) { return other / on_host == rank / on_host; });
    least = std::min(least, together);
    most = std::max(most, together);
  }
  if (least == most) return most;
  throw InputError("parallel.fsdp: hybrid_shard cuts over the ranks of a host, which are " + std::to_string(least) +
                   " on one and " + std::to_string(most) + " on another: set parallel.fsdp.shard_size");
}

/// Splits for HYBRID_SHARD: runs of `shard_size` ranks along the cut axes share a model, the others repeat it.
class Hybrid {
 public:
  Hybrid(const DeviceMesh& mesh, const ShardingChoice& choice, int64_t shard_size)
      : mesh_(mesh),
        axes_(choice.axes.begin(), choice.axes.end()),
        shard_size_(shard_size),
        places_(mesh.layout(), choice.axes, shard_size) {}

  Group shards() const {
    const Group& all = mesh_.group(axes_);
    std::vector<int> members(shard_size_);
    std::iota(members.begin(), members.end(), static_cast<int>(all.rank() / shard_size_ * shard_size_));
    return all.split(members, "shards");
  }

  /// Of the ranks that differ along `axes`, those that hold the same place of their shard group.
  Group same_place(const std::set<std::string>& axes, const std::string& name) const {
    const Group& all = mesh_.group(axes);
    std::vector<int> members;
    for (int member = 0; member < all.size(); ++member) {
      if (places_.of(all.ranks()[member]).shard == places_.of(mesh_.rank()).shard) members.push_back(member);
    }
    return all.split(members, name);
  }

 private:
  const DeviceMesh& mesh_;
  std::set<std::string> axes_;
  int64_t shard_size_;
  KeeperPlaces places_;
};

/// Without a queue for gathers.
DataParallel make_groups(const Recipe& recipe, const DeviceMesh& mesh) {
  const FsdpRecipe& asked = recipe.parallel.fsdp;
  const ShardingChoice choice = sharding_choice(recipe, mesh.layout());
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
  if (recipe.train.precision.ends_with("_mixed")) {
    options.shard_dtype = at::kFloat;
    options.reduce_dtype = dtype_of(asked.reduce_dtype);
  }
  if (choice.hybrid) {
    const Hybrid hybrid(mesh, choice,
                        asked.shard_size ? *asked.shard_size : ranks_of_a_host(mesh.layout(), choice.axes));
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

DataParallel make_data_parallel(const Recipe& recipe, const DeviceMesh& mesh) {
  DataParallel parallel = make_groups(recipe, mesh);
  FsdpOptions& options = parallel.options;
  if (gathers_beside_reductions(options.mode) && options.shards.size() > 1) {
    options.gathers = options.shards.second_queue();
  }
  return parallel;
}

}  // namespace meshtrain
