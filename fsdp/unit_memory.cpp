#include "fsdp/unit_memory.h"

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors full_values(const Unit& unit) {
  Tensors values;
  for (const FlatBuffer& buffer : unit.buffers()) values.push_back(buffer.values());
  return values;
}

Tensors full_gradients(const Unit& unit) {
  Tensors gradients;
  for (const FlatBuffer& buffer : unit.buffers()) {
    if (buffer.trainable()) gradients.push_back(buffer.gradients());
  }
  return gradients;
}

Tensors apart_gradients(const Unit& unit) {
  Tensors gradients;
  for (const FlatBuffer& buffer : unit.buffers()) {
    if (buffer.trainable() && buffer.keeps_gradients_apart()) gradients.push_back(buffer.shard_gradients());
  }
  return gradients;
}

Arena for_parameters(const std::vector<Unit>& units, const FsdpOptions& options) {
  const Group& shards = options.shards;
  Arena for_good(units, full_values);
  if (!cuts_units(options, for_good.device())) return for_good;
  const bool needed = options.mode != ShardingMode::FullShard;
  const bool one_host = shards.host_ranks() == shards.size() && !options.memory.is_apart_from(for_good.device());
  const bool shared = (needed || one_host) && for_good.share(shards, Placement::Common);
  if (needed || shared) return for_good;
  const int64_t reach = options.reshard_after_forward ? options.prefetch : static_cast<int64_t>(units.size());
  Arena reused(units, full_values, reach);
  reused.share(shards, Placement::Own);
  return reused;
}

std::string describe(const Arena& arena) {
  const std::string size = size_text(arena.bytes());
  switch (arena.placement()) {
    case Placement::Private:
      return size + " a rank";
    case Placement::Own:
      return size + " a rank, in memory " +
             (arena.device().is_cpu() ? "shared with its host" : "that its communicators register");
    case Placement::Common:
      return size + ", one copy on each host";
  }
  return size;
}

}  // namespace

UnitMemory::UnitMemory(std::vector<Unit>& units, const FsdpOptions& options) {
  // 1. Windows: every rank makes the same requests, before any rank can have failed alone.
  parameters = for_parameters(units, options);
  const Group& cut = options.shards.size() > 1 ? options.shards : options.replicas;
  const Group& summed = options.summed_over.size() > 1 ? options.summed_over : cut;
  const at::Device device = parameters.device();
  gradients =
      Arena(units, full_gradients, keeps_full_gradients(options, device) ? std::nullopt : std::optional<int64_t>(1));
  gradients.share(summed, Placement::Own);
  if (!options.memory.is_apart_from(device)) {
    shard_gradients = Arena(units, apart_gradients);
    if (summed.size() > options.shards.size()) shard_gradients.share(summed, Placement::Own);
  }

  // 2. Ordinary memory for the rest.
  for (Arena* arena : {&parameters, &gradients, &shard_gradients}) arena->settle();
  for (Unit& unit : units) {
    for (FlatBuffer& buffer : unit.buffers()) buffer.settle(/*values_stay=*/!parameters.is_reused());
  }
}

std::string describe(const UnitMemory& memory) {
  return "parameters " + describe(memory.parameters) + "; gradients " + describe(memory.gradients);
}

}  // namespace meshtrain
