#include "runtime/training/data/interleave.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace meshtrain {
namespace {

constexpr double kScale = 1 << 30;  // products of two sums of weights stay below 2^63

}  // namespace

Interleave::Interleave(const std::vector<double>& weights) : sums_{0} {
  if (weights.empty()) throw std::invalid_argument("no sources to take samples from");
  const double largest = *std::ranges::max_element(weights);
  double total = 0;
  for (const double weight : weights) total += weight / largest;
  for (const double weight : weights) {
    if (!(weight > 0))
      throw std::invalid_argument("the weight of a source must be above 0, not " + std::to_string(weight));
    sums_.push_back(sums_.back() + std::max<int64_t>(1, std::llround(weight / largest / total * kScale)));
  }
}

Interleave::Origin Interleave::at(int64_t g) const {
  if (g < 0) throw std::out_of_range("sample " + std::to_string(g));
  size_t begin = 0, end = sums_.size() - 1;
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    const int64_t before = left(g, begin, middle, end);
    if (left(g + 1, begin, middle, end) > before) {
      end = middle;
      g = before;
    } else {
      begin = middle;
      g -= before;
    }
  }
  return {begin, g};
}

std::vector<int64_t> Interleave::counts(int64_t count) const {
  std::vector<int64_t> counts(sums_.size() - 1);
  add_counts(count, 0, counts.size(), counts);
  return counts;
}

int64_t Interleave::left(int64_t count, size_t begin, size_t middle, size_t end) const {
  const int64_t part = sums_[middle] - sums_[begin], total = sums_[end] - sums_[begin];
  return count / total * part + (count % total * part + total / 2) / total;  // round(count * part / total)
}

void Interleave::add_counts(int64_t count, size_t begin, size_t end, std::vector<int64_t>& counts) const {
  if (end - begin == 1) {
    counts[begin] = count;
    return;
  }
  const size_t middle = begin + (end - begin) / 2;
  const int64_t before = left(count, begin, middle, end);
  add_counts(before, begin, middle, counts);
  add_counts(count - before, middle, end, counts);
}

}  // namespace meshtrain
