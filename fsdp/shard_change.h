#pragma once

namespace meshtrain {

/// What was changed besides the shards of trainable parameters.
struct ShardChange {
  bool frozen = false;  ///< those of frozen parameters
  bool rounded =
      false;  ///< FlatBuffer::rounded_shard() of every trainable buffer that has it, to what its shard is now
};

}  // namespace meshtrain
