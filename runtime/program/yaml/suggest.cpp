#include "runtime/program/yaml/suggest.h"

#include <algorithm>

#include "mesh/base/files/lower_case.h"

namespace meshtrain {
namespace {

/// Returns how many letters must be added, removed, changed, or swapped with their neighbour to turn `a` into `b`.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, changed});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 64;  // no key is as long
  if (word.size() > kLongest) return {};
  const std::string small = lower_case(word);
  std::string best;
  size_t best_distance = word.size();
  for (const std::string& candidate : candidates) {
    const size_t found = distance(small, candidate);
    const size_t allowed = std::max<size_t>(1, std::min(word.size(), candidate.size()) / 3);
    if (found > allowed || found >= best_distance) continue;
    best = candidate;
    best_distance = found;
  }
  return best;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace meshtrain
