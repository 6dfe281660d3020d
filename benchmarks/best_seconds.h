#pragma once

#include <algorithm>
#include <chrono>
#include <functional>

/// Returns the shortest time of `repetitions` calls: other work on the machine lengthens the rest.
inline double best_seconds(int repetitions, const std::function<void()>& action) {
  double best = 1e9;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    action();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}
