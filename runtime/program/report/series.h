#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshtrain {

/// The values of a range of steps.
struct Column {
  int64_t count = 0;       ///< of finite values
  int64_t num_others = 0;  ///< of values that are not finite
  double sum = 0;
  double least = 0;
  double most = 0;

  double mean() const { return sum / static_cast<double>(count); }
  void add(double value);
  void add(const Column& other);
};

/// A number of each step, thinned as it grows: a series has at most kMostColumns columns of equally many steps, which
/// become twice as wide whenever a step lies beyond the last. Memory and a drawing of it are bounded, whatever the
/// number of steps, while no extreme is lost.
class Series {
 public:
  static constexpr int64_t kMostColumns = 1024;
  static constexpr int64_t kMostSteps = int64_t{1} << 40;

  /// Adds the value of `step`, from 0 to kMostSteps; steps may come in any order. A value that is not finite counts as
  /// one of Column::num_others.
  void add(int64_t step, double value);

  /// Returns the number of steps in a column.
  int64_t width() const { return width_; }
  /// Returns the columns; some may be empty. Column i has the steps from i * width() to (i + 1) * width() - 1.
  const std::vector<Column>& columns() const { return columns_; }
  /// Returns the step in the middle of a column, that of its one step when width() is 1.
  double step_of(size_t column) const {
    return static_cast<double>(width_) * static_cast<double>(column) + static_cast<double>(width_ - 1) / 2;
  }

  /// Returns all values in one column.
  Column total() const;
  bool has_values() const { return total().count > 0; }
  int64_t first_step() const { return first_step_; }
  int64_t last_step() const { return last_step_; }
  /// Returns the value at last_step(); NaN when the value is not finite.
  double last() const { return last_; }

 private:
  void widen();

  int64_t width_ = 1;
  std::vector<Column> columns_;
  int64_t first_step_ = -1, last_step_ = -1;
  double last_ = 0;
};

}  // namespace meshtrain
