#pragma once

#include <string>
#include <vector>

#include "fsdp/flat_buffer.h"

namespace meshtrain {

/// Numbers laid out like a range of this rank's shard of a flat buffer: the shard itself, or an optimizer's state for
/// it.
struct ShardTensor {
  std::string name;  ///< "exp_avg"; empty: values of the parameters
  const FlatBuffer* buffer;
  Range range;             ///< of the shard
  at::Tensor values = {};  ///< [range.numel]
};

/// A box of a parameter's global tensor in this rank's memory.
struct ShardBox {
  const Parameter* parameter;
  Box box;
  at::Tensor values;  ///< [box.size]: a view of ShardTensor::values
};

/// Returns the boxes that make up `wanted`, a range of the shard, as far as `numbers` covers that range: every element
/// of a parameter once, without padding. A shard may begin and end anywhere, so a matrix gives up to three boxes.
std::vector<ShardBox> shard_boxes(const ShardTensor& numbers, Range wanted);

}  // namespace meshtrain
