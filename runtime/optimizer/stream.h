#pragma once

#include <vector>

#include "fsdp/shard_memory.h"

namespace meshtrain {

/// Calls `update` with each of `parts` in turn, while the tensors() of the next are read from the disk and those of the
/// one before are written, if that is where they are.
template <class Parts, class Update>
void stream(Parts& parts, const Update& update) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 < parts.size()) {
      for (const at::Tensor& tensor : parts[i + 1].tensors()) fetch_ahead(tensor);
    }
    update(parts[i]);
    for (const at::Tensor& tensor : parts[i].tensors()) set_aside(tensor);
  }
}

}  // namespace meshtrain
