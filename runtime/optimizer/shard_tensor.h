#pragma once

#include <string>

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

}  // namespace meshtrain
