#include "runtime/program/foreign/meshes.h"

#include <string>

namespace meshtrain {

std::optional<int64_t> MeshSizes::dp() const {
  return shards ? std::optional(replicas * *shards) : std::nullopt;
}

void set_mesh(Conversion& from, const MeshSizes& sizes) {
  const std::optional<int64_t> dp = sizes.dp();
  const auto axis = [](const char* name, int64_t size) {
    return size > 1 ? ", " + std::string(name) + ": " + std::to_string(size) : std::string();
  };
  from.set("parallel.mesh", "{dp: " + (dp ? std::to_string(*dp) : "auto") + axis("cp", sizes.cp) +
                                axis("tp", sizes.tp) + axis("pp", sizes.pp) + axis("ep", sizes.ep) + "}");
  const bool is_shared = !sizes.shards || *sizes.shards * sizes.cp > 1;
  const std::string mode = !is_shared ? "no_shard" : sizes.replicas > 1 ? "hybrid_shard" : "full_shard";
  from.set("parallel.fsdp.mode", mode);
  if (mode != "hybrid_shard") return;
  if (sizes.shards) {
    from.set("parallel.fsdp.shard_size", *sizes.shards * sizes.cp, sizes.cp > 1 ? "shards x cp" : "");
  } else {
    from.need("parallel.fsdp.shard_size", "the ranks of a replica: all over " + std::to_string(sizes.replicas));
  }
}

void set_batch(Conversion& from, const ForeignBatch& batch, const std::optional<int64_t>& dp) {
  from.set("train.micro_batch", batch.micro_batch);
  if (dp) {
    from.set("train.global_batch", batch.of_rank * *dp, batch.formula);
  } else {
    from.need("train.global_batch", std::to_string(batch.of_rank) + " x the ranks of dp");
  }
}

}  // namespace meshtrain
