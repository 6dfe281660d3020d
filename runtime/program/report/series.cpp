#include "runtime/program/report/series.h"

#include <algorithm>
#include <cmath>

namespace meshtrain {

void Column::add(double value) {
  if (!std::isfinite(value)) {
    ++num_others;
    return;
  }
  add(Column{1, 0, value, value, value});
}

void Column::add(const Column& other) {
  if (other.count > 0) {
    least = count == 0 ? other.least : std::min(least, other.least);
    most = count == 0 ? other.most : std::max(most, other.most);
  }
  count += other.count;
  num_others += other.num_others;
  sum += other.sum;
}

void Series::add(int64_t step, double value) {
  while (step / width_ >= kMostColumns) widen();
  const auto column = static_cast<size_t>(step / width_);
  if (column >= columns_.size()) columns_.resize(column + 1);
  columns_[column].add(value);
  if (first_step_ < 0 || step < first_step_) first_step_ = step;
  if (step >= last_step_) {
    last_step_ = step;
    last_ = value;
  }
}

void Series::widen() {
  const size_t half = (columns_.size() + 1) / 2;
  for (size_t i = 0; i < half; ++i) {
    Column both = columns_[2 * i];
    if (2 * i + 1 < columns_.size()) both.add(columns_[2 * i + 1]);
    columns_[i] = both;
  }
  columns_.resize(half);
  width_ *= 2;
}

Column Series::total() const {
  Column all;
  for (const Column& column : columns_) all.add(column);
  return all;
}

}  // namespace meshtrain
