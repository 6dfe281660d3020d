#pragma once

#include <cstdint>
#include <vector>

#include "runtime/training/model/ignored_label.h"

namespace meshtrain {

/// Samples of S tokens and their labels, addressed by global sample index g from 0 on. The tokens of g do not depend on
/// mesh or rank. Any thread may call; no collective.
class Samples {
 public:
  virtual ~Samples() = default;

  /// Reads the first S tokens of sample g into `inputs` and its last S into `labels`, kIgnoredLabel where they do not
  /// count. Returns the positions at which documents begin that must not see those before: ascending, 1 to S - 1; none
  /// when the sample is one document.
  virtual std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const = 0;
};

}  // namespace meshtrain
