#pragma once

#include <cstdint>

namespace meshtrain {

/// The label of a token that the loss does not count.
inline constexpr int64_t kIgnoredLabel = -100;

}  // namespace meshtrain
