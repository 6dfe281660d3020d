#pragma once

#include <cstdint>

namespace meshtrain {

/// The FSDP units that a model's blocks are divided into. The embedding and the head have units of their own.
struct UnitOptions {
  int64_t layers = 1;      ///< number of blocks in a unit, at least 1; the last unit may have fewer. 1 with `sublayers`
  bool sublayers = false;  ///< attention and feed-forward of each block, with their norms, are units of their own
};

}  // namespace meshtrain
