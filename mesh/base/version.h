#pragma once

namespace meshtrain {

/// Returns the version of this build, such as "0.1.0".
const char* version();

}  // namespace meshtrain
