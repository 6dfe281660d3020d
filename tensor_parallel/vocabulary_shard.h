#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Token ids relative to one rank's part of the vocabulary.
struct ShardIds {
  at::Tensor local;   ///< int64 [T]: row in the shard; 0 when another rank has the token
  at::Tensor absent;  ///< bool [T]: true when another rank has the token
};

/// Returns ids, int64 [T], relative to a shard with the ids [first, first + count).
inline ShardIds shard_ids(const at::Tensor& ids, int64_t first, int64_t count) {
  at::Tensor local = ids.sub(first);
  const at::Tensor absent = local.lt(0).bitwise_or_(local.ge(count));
  return {local.masked_fill_(absent, 0), absent};
}

}  // namespace meshtrain
