#pragma once

#include <string>
#include <utility>
#include <vector>

namespace meshtrain {

/// A table whose first rows are left out when there are more than kMostRows, which a line says.
class Table {
 public:
  static constexpr size_t kMostRows = 200;

  explicit Table(std::vector<std::string> names) : names_(std::move(names)) {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// Returns the table as HTML; empty without rows. Cells from column `wide` on may have several lines.
  std::string html(size_t wide = 100) const;

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace meshtrain
