#include "runtime/program/published/rates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace meshtrain {

Rates fitted_rates(const std::vector<RateObservation>& runs) {
  constexpr double kOwn = 0.1, kUsual = 1.5 * kOwn;  // what a run is off by, and up to where it counts fully
  constexpr int kSweeps = 500;
  std::map<std::string, double> num_runs;
  for (const RateObservation& run : runs) ++num_runs[run.source];
  std::array<double, kRateMembers.size()> logs{};
  // Coordinate descent: each log in turn gets the value that is best beside the others.
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < logs.size(); ++i) {
      double numerator = 0, denominator = 1 / (kRateMembers[i].width * kRateMembers[i].width);
      for (const RateObservation& run : runs) {
        double left = run.residual;
        for (size_t j = 0; j < logs.size(); ++j) left -= run.slopes[j] * logs[j];
        const double counts = std::min(1.0, kUsual / std::max(std::abs(left), 1e-9)) / std::sqrt(num_runs[run.source]);
        const double weight = counts / (kOwn * kOwn);
        numerator += weight * run.slopes[i] * (left + run.slopes[i] * logs[i]);
        denominator += weight * run.slopes[i] * run.slopes[i];
      }
      logs[i] = numerator / denominator;
    }
  }
  Rates rates;
  for (size_t i = 0; i < logs.size(); ++i) rates.*kRateMembers[i].factor = std::exp(logs[i]);
  return rates;
}

Rates program_rates() {
  Rates rates;
  rates.products = 1.01;
  rates.attention = 0.76;
  rates.fp8_products = 0.92;
  rates.memory = 0.99;
  rates.on_host = 0.97;
  rates.among_hosts = 0.94;
  return rates;
}

std::string to_text(const Rates& rates) {
  std::string text;
  for (const RateMember& member : kRateMembers) {
    char each[64];
    std::snprintf(each, sizeof each, "%s%s %.2f", text.empty() ? "" : ", ", member.name, rates.*member.factor);
    text += each;
  }
  return text;
}

}  // namespace meshtrain
