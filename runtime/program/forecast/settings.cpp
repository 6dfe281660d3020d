#include "runtime/program/forecast/settings.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/program/recipe/load.h"

namespace meshtrain {
namespace {

std::string number(int64_t value) {
  return std::to_string(value);
}

/// Returns the numbers of hosts that the groups of the axes span, of rank 0.
std::vector<int64_t> hosts_of_axes(const MeshLayout& layout, const ForecastHosts& hosts) {
  std::vector<int64_t> numbers;
  for (const std::vector<std::string>& axes : {std::vector<std::string>{kPipelineAxis},
                                               {kDataAxis},
                                               {kContextAxis},
                                               {kTensorAxis},
                                               {kDataAxis, kContextAxis}}) {
    std::set<int64_t> found;
    for (const int64_t rank : layout.group(axes, 0)) found.insert(rank / hosts.ranks_per_host);
    numbers.push_back(static_cast<int64_t>(found.size()));
  }
  return numbers;
}

Choice sharding_choice_of(const MeshLayout& layout, const ForecastHosts& hosts) {
  const std::string mode = "parallel.fsdp.mode=", prefetch = "parallel.fsdp.prefetch=";
  const int64_t ranks = layout.size(kDataAxis) * layout.size(kContextAxis);
  if (ranks == 1) return {};
  Choice choice = {{{mode + "no_shard"}}, {{mode + "shard_optimizer"}}, {{mode + "shard_grad_op"}}};
  for (const int64_t ahead : {1, 2}) choice.push_back({{mode + "full_shard", prefetch + number(ahead)}});
  choice.push_back({{mode + "full_shard", prefetch + number(1), "parallel.fsdp.unit=sublayer"}});
  // One copy of the model to a host, to two and to four.
  const int64_t on_host = std::max<int64_t>(hosts.ranks_per_host / layout.size(kTensorAxis), 2);
  for (const int64_t size : {on_host, 2 * on_host, 4 * on_host}) {
    if (size >= ranks || ranks % size != 0) continue;
    choice.push_back({{mode + "hybrid_shard", "parallel.fsdp.shard_size=" + number(size)}});
  }
  return choice;
}

/// Returns micro-batches from small to large, for each way of checkpointing.
Choice memory_choice(const Recipe& recipe, const MeshLayout& layout) {
  constexpr size_t kMost = 8;
  const int64_t of_rank = recipe.train.global_batch / layout.size(kDataAxis);
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= of_rank; ++count) {
    if (of_rank % count == 0) counts.push_back(count);
  }
  if (counts.size() > kMost) std::erase_if(counts, [](int64_t count) { return (count & (count - 1)) != 0; });
  Choice choice;
  const std::string checkpointing = "train.activation_checkpointing.";
  for (const std::string mode : {"none", "selective", "full"}) {
    std::vector<Settings>& ladder = choice.emplace_back();
    for (const int64_t count : counts) {
      Settings& rung =
          ladder.emplace_back(Settings{"train.micro_batch=" + number(count), checkpointing + "mode=" + mode});
      if (mode == "none") rung.push_back(checkpointing + "every=null");  // which is of the other modes
    }
  }
  return choice;
}

}  // namespace

Choice order_choice(const Recipe& recipe, const MeshLayout& layout, const ForecastHosts& hosts) {
  if (hosts.ranks_per_host >= layout.size()) return {};
  std::vector<std::string> axes;
  for (const Axis& axis : layout.axes()) axes.push_back(axis.name);
  const auto hosts_in = [&](const std::vector<std::string>& order) {
    return hosts_of_axes(MeshLayout::fit(layout.sizes(), order, layout.size()), hosts);
  };
  std::set<std::vector<int64_t>> seen = {hosts_in(recipe.parallel.order)};
  std::ranges::sort(axes);
  Choice choice;
  do {
    if (!seen.insert(hosts_in(axes)).second) continue;
    std::string order;
    for (const std::string& axis : axes) order += (order.empty() ? "[" : ",") + axis;
    choice.push_back({{"parallel.order=" + order + "]"}});
  } while (std::ranges::next_permutation(axes).found);
  return choice;
}

std::vector<Choice> choices_of(const Recipe& recipe, const MeshLayout& layout, const ForecastHosts& hosts) {
  std::vector<Choice> choices = {sharding_choice_of(layout, hosts), memory_choice(recipe, layout)};
  if (layout.size(kTensorAxis) > 1) {
    choices.push_back({{{"parallel.sequence_parallel=on"}}, {{"parallel.sequence_parallel=off"}}});
  }
  if (layout.size(kContextAxis) > 1) {
    Choice& algorithms = choices.emplace_back();
    for (const char* name : {"ring", "all_gather", "ulysses"}) {
      algorithms.push_back({{std::string("parallel.context.algorithm=") + name}});
    }
  }
  if (layout.size(kPipelineAxis) > 1) {
    const std::string pipeline = "parallel.pipeline.";
    choices.push_back({{{pipeline + "schedule=1f1b", pipeline + "stages_per_rank=1"}},
                       {{pipeline + "schedule=interleaved", pipeline + "stages_per_rank=2"}},
                       {{pipeline + "schedule=zb_h1", pipeline + "stages_per_rank=1"}}});
  }
  choices.push_back(order_choice(recipe, layout, hosts));
  return choices;
}

Choice offload_choice() {
  return {{{"parallel.fsdp.mode=full_shard", "parallel.fsdp.offload={to: host}"}},
          {{"parallel.fsdp.offload={to: host, parameters: false}"}}};
}

Settings that_change(const Recipe& recipe, Settings settings) {
  if (settings.empty()) return settings;
  const std::string changed = to_yaml(with_overrides(recipe, settings));
  const auto changes = [&](const Settings& without) {
    try {
      return to_yaml(with_overrides(recipe, without)) != changed;
    } catch (const InputError&) {  // the others need it
      return true;
    }
  };
  for (size_t i = settings.size(); i-- > 0;) {
    Settings without = settings;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    if (!changes(without)) settings = std::move(without);
  }
  return settings;
}

}  // namespace meshtrain
