#pragma once

#include <cstdint>
#include <optional>

#include "runtime/program/foreign/conversion.h"

namespace meshtrain {

/// The degrees of a configuration that is written as sizes of axes.
struct MeshSizes {
  int64_t replicas = 1;           ///< copies of the model along dp
  std::optional<int64_t> shards;  ///< ranks along dp that share a copy; none: the ranks that are left
  int64_t cp = 1, tp = 1, pp = 1;
  int64_t ep = 1;

  /// Returns the ranks along dp; none where the ranks decide.
  std::optional<int64_t> dp() const;
};

/// Sets parallel.mesh, and mode and shard size of FSDP: full_shard, or hybrid_shard with several replicas, whose ranks
/// are the shards x cp; no_shard where no parameter is shared out.
void set_mesh(Conversion& from, const MeshSizes& sizes);

/// The samples of a step as other programs state them.
struct ForeignBatch {
  int64_t micro_batch = 1;
  int64_t of_rank = 1;  ///< samples of a rank of dp in a step
  std::string formula;  ///< the words for of_rank x dp: "local_batch_size x dp"
};

/// Sets train.micro_batch, and train.global_batch to of_rank x dp, or lists the latter as needed where dp is not known.
void set_batch(Conversion& from, const ForeignBatch& batch, const std::optional<int64_t>& dp);

}  // namespace meshtrain
