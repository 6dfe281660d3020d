#include "runtime/program/run/stragglers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace meshtrain {

Stragglers::Stragglers(const MeshLayout& layout, std::vector<std::string> hosts, std::vector<int64_t> classes)
    : layout_(layout), hosts_(std::move(hosts)), classes_(std::move(classes)) {
  if (!classes_.empty()) return;
  for (int64_t rank = 0; rank < layout.size(); ++rank) classes_.push_back(layout.coordinate(rank, kPipelineAxis));
}

std::optional<Stragglers::Delay> Stragglers::slowest_of(const std::vector<RankStep>& ranks) const {
  std::map<int64_t, std::vector<std::pair<double, int64_t>>> waits;  // wait and rank, by class
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double wait = ranks[rank].exposed();
    if (std::isnan(wait)) return std::nullopt;
    waits[classes_.at(rank)].emplace_back(wait, static_cast<int64_t>(rank));
  }
  std::optional<Delay> slowest;
  for (auto& [own, others] : waits) {
    if (others.size() < 2) continue;
    std::ranges::nth_element(others, others.begin());
    const auto [least, rank] = others.front();
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>(1 + (others.size() - 1) / 2);
    std::nth_element(others.begin() + 1, middle, others.end());
    const double waited = middle->first - least;
    if (!slowest || waited > slowest->others) slowest = {rank, waited, ranks.front().step_seconds};
  }
  return slowest;
}

std::string Stragglers::note(const std::vector<RankStep>& ranks) {
  const std::optional<Delay> slowest = slowest_of(ranks);
  if (!slowest) return "";
  if (last_.size() < kSteps) {
    last_.push_back(*slowest);
  } else {
    last_[next_] = *slowest;
  }
  next_ = (next_ + 1) % kSteps;
  if (last_.size() < kSteps) return "";

  std::map<int64_t, int64_t> times;
  double others = 0, seconds = 0;
  for (const Delay& step : last_) {
    ++times[step.slowest];
    others += step.others;
    seconds += step.step_seconds;
  }
  const auto most = std::max_element(times.begin(), times.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  const bool is_slow = static_cast<double>(most->second) >= kShareOfSteps * kSteps &&
                       others >= std::max(kShareOfTime * seconds, kLeastSeconds * kSteps);
  if (!is_slow) {
    if (times[slow_] < kSteps / 2 || others < kShareOfTime / 2 * seconds) slow_ = -1;
    if (times[named_] < kSteps / 2 || others < kShareOfTime / 2 * seconds) named_ = -1;
    return "";
  }
  slow_for_ = std::exchange(slow_, most->first) == most->first ? slow_for_ + ranks.front().step_seconds : seconds;
  if (slow_for_ < kLeastTime || std::exchange(named_, most->first) == most->first) return "";
  return describe(most->first, others / kSteps, seconds / kSteps);
}

std::string Stragglers::describe(int64_t rank, double others, double step_seconds) const {
  const auto index = static_cast<size_t>(rank);
  const std::string host = index < hosts_.size() ? " on " + hosts_[index] : "";
  return fmt::format(
      "rank {} ({}){} is slower than the others in each step: in the last {} steps the others waited {:.3g} s of a "
      "step's {:.3g} s for it ({:.0f} %): a slower or busier core or GPU, or more work than the others have",
      rank, layout_.describe(rank), host, kSteps, others, step_seconds, 100 * others / step_seconds);
}

}  // namespace meshtrain
