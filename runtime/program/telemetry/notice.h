#pragma once

#include <string>

namespace meshtrain {

/// A line for people, with its level in logs.
struct Notice {
  std::string line;
  bool is_warning = false;
};

}  // namespace meshtrain
