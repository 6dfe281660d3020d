#include "runtime/program/recipe/sharding.h"

#include <algorithm>
#include <set>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {

const char* name(ShardingMode mode) {
  switch (mode) {
    case ShardingMode::NoShard:
      return "no_shard";
    case ShardingMode::ShardOptimizer:
      return "shard_optimizer";
    case ShardingMode::ShardGradOp:
      return "shard_grad_op";
    case ShardingMode::FullShard:
      return "full_shard";
  }
  return "";
}

namespace {

/// Returns the mode for a word of parallel.fsdp.mode. hybrid_shard is full_shard over some of the ranks.
ShardingMode mode_of(const std::string& word) {
  for (const ShardingMode mode : {ShardingMode::NoShard, ShardingMode::ShardOptimizer, ShardingMode::ShardGradOp}) {
    if (word == name(mode)) return mode;
  }
  return ShardingMode::FullShard;
}

/// Returns " over dp x cp".
std::string axes(const ShardingChoice& choice) {
  std::string text;
  for (const std::string& axis : choice.axes) text += (text.empty() ? " over " : " x ") + axis;
  return text;
}

/// Returns "1, 2, 4" for 4.
std::string divisors(int64_t number) {
  std::vector<std::string> all;
  for (int64_t size = 1; size <= number; ++size) {
    if (number % size == 0) all.push_back(std::to_string(size));
  }
  return joined(all);
}

std::string ranks(const ShardingChoice& choice) {
  return counted(choice.num_ranks, "rank");
}

/// Returns the mode for `auto`. In a pipeline full_shard would gather each stage for every micro-batch.
std::string automatic_mode(const MeshLayout& layout) {
  if (layout.size(kTensorAxis) > 1) return "no_shard";
  return layout.size(kPipelineAxis) > 1 ? "shard_grad_op" : "full_shard";
}

}  // namespace

ShardingChoice sharding_choice(const Recipe& recipe, const MeshLayout& layout) {
  const FsdpRecipe& asked = recipe.parallel.fsdp;
  const std::string word = asked.mode == "auto" ? automatic_mode(layout) : asked.mode;
  ShardingChoice choice{mode_of(word), asked.shard_axes, 1, word == "hybrid_shard"};
  if (choice.axes.empty()) choice.axes = {kDataAxis, kContextAxis};
  if (choice.mode == ShardingMode::NoShard) choice.axes = {kDataAxis};
  std::erase_if(choice.axes, [&](const std::string& axis) { return axis != kDataAxis && layout.size(axis) == 1; });
  for (const std::string& axis : choice.axes) choice.num_ranks *= layout.size(axis);
  const bool offloads = asked.offload.parameters &&
                        (asked.offload.to == "disk" || (asked.offload.to == "host" && recipe.device != "cpu"));
  if (choice.num_ranks == 1 && !(choice.mode == ShardingMode::FullShard && offloads)) {
    choice.mode = ShardingMode::NoShard;
    choice.hybrid = false;
  }
  if (choice.hybrid) choice.shard_size = asked.shard_size;
  return choice;
}

std::string describe(const ShardingChoice& choice) {
  const std::string where = axes(choice) + ", " + ranks(choice);
  if (!choice.hybrid) return name(choice.mode) + where;
  const std::string share = choice.shard_size ? std::to_string(*choice.shard_size) : "those of a host";
  return "hybrid_shard" + where + ", " + share + " to a copy";
}

void check_sharding(const Recipe& recipe, const ShardingChoice& choice) {
  const FsdpRecipe& asked = recipe.parallel.fsdp;
  if (!asked.shard_axes.empty() && std::ranges::find(asked.shard_axes, kDataAxis) == asked.shard_axes.end()) {
    throw InputError("parallel.fsdp.shard_axes", "parameters are cut over dp, or over dp and cp: use [dp] or [dp, cp]");
  }
  if (std::set<std::string>(asked.shard_axes.begin(), asked.shard_axes.end()).size() < asked.shard_axes.size()) {
    throw InputError("parallel.fsdp.shard_axes", asked.shard_axes.front() + " is named twice: use [dp] or [dp, cp]");
  }
  if (asked.unit == "sublayer" && asked.unit_layers > 1) {
    throw InputError("parallel.fsdp.unit",
                     "sublayer makes units inside each block, but " + Key{"parallel.fsdp.unit_layers"} + " puts " +
                         std::to_string(asked.unit_layers) + " blocks into a unit: leave one of the two keys out");
  }
  if (asked.shard_size && asked.mode != "hybrid_shard") {
    throw InputError("parallel.fsdp.shard_size", "belongs to mode hybrid_shard, but the mode is " + asked.mode +
                                                     ": change the mode or leave shard_size out");
  }
  if (asked.shard_size && choice.num_ranks % *asked.shard_size != 0) {
    throw InputError("parallel.fsdp.shard_size",
                     std::to_string(*asked.shard_size) + " does not divide the " + ranks(choice) + axes(choice) +
                         " that hybrid_shard has on this mesh: use " + divisors(choice.num_ranks));
  }
}

}  // namespace meshtrain
