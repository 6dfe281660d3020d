#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/plan/machine.h"

namespace meshtrain {

/// The rates of GPUs and networks that data sheets and measured kernels leave open, as factors of a machine's.
struct Rates {
  double products = 1;
  double attention = 1;
  double fp8_products = 1;  ///< beyond `products`
  double memory = 1;        ///< of elementwise operators
  double on_host = 1;       ///< of collectives, by bandwidth
  double among_hosts = 1;
};

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

/// Returns `machine` with its rates times `rates`.
Machine with_rates(Machine machine, const Rates& rates);

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

/// Returns the rates of machine_preset(), times those of sourced_machine().
Rates preset_rates();

/// Returns "products 0.98, attention 0.84" and so on.
std::string to_text(const Rates& rates);

}  // namespace meshtrain
