#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/program/forecast/machine.h"

namespace meshtrain {

/// A member of Rates.
struct RateMember {
  const char* name;
  double Rates::*factor;
  double width;  ///< by how much, relative, the factor may be off 1 before a run was seen: one standard deviation
};

/// All members of Rates. Widths are the ranges of the sources that machine_presets.cpp names.
inline constexpr std::array kRateMembers = {
    RateMember{"products", &Rates::products, 0.08},         RateMember{"attention", &Rates::attention, 0.15},
    RateMember{"fp8 products", &Rates::fp8_products, 0.15}, RateMember{"memory", &Rates::memory, 0.1},
    RateMember{"on a host", &Rates::on_host, 0.15},         RateMember{"among hosts", &Rates::among_hosts, 0.3},
};

/// A run whose time was measured.
struct RateObservation {
  std::string source;
  double residual = 0;                               ///< log(measured / predicted with factors of 1)
  std::array<double, kRateMembers.size()> slopes{};  ///< of the log of its time by the log of each factor
};

/// Returns the rates that explain the runs best: the most likely factors, given their widths, when each run is off by a
/// tenth for reasons of its own. Each source counts as much as the square root of its runs, since one program and one
/// cluster are off alike; a run that is off by much counts less (Huber).
Rates fitted_rates(const std::vector<RateObservation>& runs);

/// Returns the rates that fitted_rates() finds for the runs of benchmarks/published/published_runs.csv: those of other
/// programs, times those of sourced_machine().
Rates program_rates();

/// Returns "products 0.98, attention 0.84" and so on.
std::string to_text(const Rates& rates);

}  // namespace meshtrain
