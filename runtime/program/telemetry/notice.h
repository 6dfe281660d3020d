#pragma once

#include <string>

namespace meshtrain {

/// A line for people, with its level in logs.
struct Notice {
  std::string line;  ///< begins with "warning: " when it is a warning
  bool is_warning = false;
};

}  // namespace meshtrain
