#include "mesh/base/files/glob.h"

#include <fnmatch.h>

#include <algorithm>

namespace meshtrain {

bool matches(std::string pattern, std::string name, char separator) {
  for (std::string* text : {&pattern, &name}) {
    if (separator != '\0') std::ranges::replace(*text, separator, '/');
  }
  return fnmatch(pattern.c_str(), name.c_str(), separator == '\0' ? 0 : FNM_PATHNAME) == 0;
}

std::optional<size_t> first_match(const std::vector<std::string>& patterns, const std::string& name) {
  const auto found =
      std::find_if(patterns.begin(), patterns.end(), [&](const std::string& each) { return matches(each, name); });
  if (found == patterns.end()) return std::nullopt;
  return static_cast<size_t>(found - patterns.begin());
}

}  // namespace meshtrain
