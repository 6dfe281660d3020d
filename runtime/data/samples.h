#pragma once

#include <cstdint>

namespace meshtrain {

/// The label of a token that the loss does not count.
inline constexpr int64_t kIgnoredLabel = -100;

/// Samples of S tokens and their labels, addressed by global sample index g from 0 on. What g is does not depend on
/// mesh or rank. Any thread may call; no collective.
class Samples {
 public:
  virtual ~Samples() = default;

  /// The first S tokens of sample g into `inputs` and its last S into `labels`, kIgnoredLabel where they do not count.
  virtual void read(int64_t g, int64_t* inputs, int64_t* labels) const = 0;
};

}  // namespace meshtrain
