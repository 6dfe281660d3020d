#pragma once

#include <string>

namespace meshtrain {

/// A line for people, with the level that logs keep it under.
struct Notice {
  std::string line;  ///< begins with "warning: " when it is one
  bool is_warning = false;
};

}  // namespace meshtrain
