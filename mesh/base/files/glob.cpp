#include "mesh/base/files/glob.h"

#include <fnmatch.h>

#include <algorithm>

namespace meshtrain {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::optional<size_t> first_match(const std::vector<std::string>& patterns, const std::string& name) {
  const auto found =
      std::find_if(patterns.begin(), patterns.end(), [&](const std::string& each) { return matches(each, name); });
  if (found == patterns.end()) return std::nullopt;
  return static_cast<size_t>(found - patterns.begin());
}

}  // namespace meshtrain
