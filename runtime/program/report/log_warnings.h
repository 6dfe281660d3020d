#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// The warnings and errors in a console.log, whose lines have time and level.
class LogWarnings {
 public:
  static constexpr size_t kMostKept = 1000;

  /// Reads a line. One of another level, or without time and level, changes nothing.
  void add(std::string_view line);

  /// Returns the different warnings and errors, in the order of their first lines.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace meshtrain
