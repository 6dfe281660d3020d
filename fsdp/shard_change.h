#pragma once

namespace meshtrain {

/// The changes besides those of the shards of trainable parameters.
struct ShardChange {
  bool frozen = false;  ///< shards of frozen parameters changed
  /// FlatBuffer::rounded_shard() of every trainable buffer that has one was set to the shard's new values.
  bool rounded = false;
};

}  // namespace meshtrain
