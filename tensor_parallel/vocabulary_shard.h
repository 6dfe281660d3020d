#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Token ids as one rank's share of the vocabulary sees them.
struct ShardIds {
  at::Tensor local;   ///< int64 [T]: the row of the shard; 0 where the token belongs to another rank
  at::Tensor absent;  ///< bool [T]: where it does
};

/// ids int64 [T]; the shard holds the ids [first, first + count).
inline ShardIds shard_ids(const at::Tensor& ids, int64_t first, int64_t count) {
  at::Tensor local = ids.sub(first);
  const at::Tensor absent = local.lt(0).bitwise_or_(local.ge(count));
  return {local.masked_fill_(absent, 0), absent};
}

}  // namespace meshtrain
