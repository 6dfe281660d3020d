#include "pipeline_parallel/stage_balance.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Divisions of the last layers into the last stages, built from the last stage to the first.
class Divisions {
 public:
  Divisions(const std::vector<double>& layers, int64_t stages, double first, double last)
      : sums_(layers.size() + 1, 0), stages_(static_cast<size_t>(stages)), first_(first), last_(last) {
    for (size_t i = 0; i < layers.size(); ++i) sums_[i + 1] = sums_[i] + layers[i];
  }

  /// Returns the least possible cost of the most expensive stage.
  double least_maximum() const {
    return best([](double stage, double others) { return std::max(stage, others); }, kNever).front().front();
  }

  /// Returns the numbers of layers with the least sum of squares whose stages cost `most` at most.
  std::vector<int64_t> even(double most) const {
    const auto total = [](double stage, double others) { return stage * stage + others; };
    const std::vector<std::vector<double>> squares = best(total, most);
    std::vector<int64_t> counts;
    size_t begin = 0;
    for (size_t stage = 0; stage < stages_; ++stage) {
      const double wanted = squares[stage][begin];
      size_t end = last_end(stage);
      const auto fits = [&](size_t each) {
        const double cost = cost_of(stage, begin, each);
        return cost <= most && total(cost, squares[stage + 1][each]) <= wanted * (1 + kRounding);
      };
      while (end > begin + 1 && !fits(end)) --end;
      counts.push_back(static_cast<int64_t>(end - begin));
      begin = end;
    }
    return counts;
  }

 private:
  static constexpr double kRounding = 1e-12;

  size_t num_layers() const { return sums_.size() - 1; }
  size_t last_end(size_t stage) const { return num_layers() - (stages_ - 1 - stage); }

  double cost_of(size_t stage, size_t begin, size_t end) const {
    return sums_[end] - sums_[begin] + (stage == 0 ? first_ : 0) + (stage + 1 == stages_ ? last_ : 0);
  }

  /// Returns [stage][begin]: the least value of stages from `stage` on over the layers from `begin` on.
  template <class Join>
  std::vector<std::vector<double>> best(const Join& join, double most) const {
    std::vector<std::vector<double>> values(stages_ + 1, std::vector<double>(num_layers() + 1, kNever));
    values[stages_][num_layers()] = 0;
    for (size_t stage = stages_; stage-- > 0;) {
      for (size_t begin = 0; begin < num_layers(); ++begin) {
        for (size_t end = begin + 1; end <= num_layers(); ++end) {
          const double cost = cost_of(stage, begin, end);
          if (cost > most || values[stage + 1][end] == kNever) continue;
          values[stage][begin] = std::min(values[stage][begin], join(cost, values[stage + 1][end]));
        }
      }
    }
    return values;
  }

  std::vector<double> sums_;  // of the layers before each
  size_t stages_;
  double first_, last_;
};

}  // namespace

std::vector<int64_t> balance_stages(const std::vector<double>& layers, int64_t stages, double first, double last) {
  if (stages < 1 || static_cast<int64_t>(layers.size()) < stages) {
    throw std::invalid_argument(counted(stages, "stage") + " cannot be made of " + counted(layers.size(), "layer"));
  }
  const Divisions divisions(layers, stages, first, last);
  return divisions.even(divisions.least_maximum() * (1 + 1e-12));
}

}  // namespace meshtrain
