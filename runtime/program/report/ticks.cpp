#include "runtime/program/report/ticks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "mesh/base/size_text.h"
#include "runtime/program/telemetry/console.h"

namespace meshtrain {
namespace {

/// Three significant digits without needless zeros, "1.5e-05" far from 1.
std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  const double size = std::abs(value);
  if (size >= 1000 && size < 999.5e3) std::snprintf(text, sizeof text, "%.0f", value);
  return text;
}

std::string scaled(double value, double base, const std::array<const char*, 6>& units) {
  size_t unit = 0;
  while (std::abs(value) >= base * 0.9995 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  return three_digits(value) + units[unit];
}

std::string seconds_text(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0 s";
  if (size < 0.9995e-3) return three_digits(value * 1e6) + " \u00b5s";
  if (size < 0.9995) return three_digits(value * 1e3) + " ms";
  if (size < 99.95) return three_digits(value) + " s";
  return size < 1e9 ? duration(value) : three_digits(value) + " s";
}

/// The smallest of 1, 2, 5, 10 times a power of ten, or of 1, 2, 4 ... for bytes, that is at least `step`.
double nice_step(double step, ValueUnit unit) {
  if (unit == ValueUnit::Bytes) return std::exp2(std::ceil(std::log2(step)));
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (step <= times * power * (1 + 1e-9)) return times * power;
  }
  return 10 * power;
}

}  // namespace

std::string text_of(double value, ValueUnit unit) {
  if (!std::isfinite(value)) return "-";
  switch (unit) {
    case ValueUnit::Bytes:
      return scaled(value, 1024, {" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
    case ValueUnit::Seconds:
      return seconds_text(value);
    case ValueUnit::Percent:
      return three_digits(100 * value) + " %";
    case ValueUnit::Flops:
      return scaled(value, 1000, {" FLOP/s", " kFLOP/s", " MFLOP/s", " GFLOP/s", " TFLOP/s", " PFLOP/s"});
    case ValueUnit::PerSecond:
    case ValueUnit::None:
      break;
  }
  if (std::abs(value) < 9999.5) return three_digits(value);
  return std::abs(value) < 1e16 ? scaled(value, 1000, {"", "k", "M", "G", "T", "P"}) : three_digits(value);
}

double Scale::position(double value) const {
  if (is_log) return (std::log(value) - std::log(from)) / (std::log(to) - std::log(from));
  return (value - from) / (to - from);
}

Scale linear_scale(double least, double most, int num_ticks, ValueUnit unit) {
  constexpr double kLargest = 1e300;
  least = std::isfinite(least) ? std::clamp(least, -kLargest, kLargest) : 0;
  most = std::isfinite(most) ? std::clamp(most, -kLargest, kLargest) : 0;
  if (most < least) std::swap(least, most);
  const double smallest = std::max(std::max(std::abs(least), std::abs(most)) * 1e-9, 1e-300);
  if (most - least < smallest) {  // a constant lies in the middle
    const double around = least == 0 ? 1 : std::abs(least) / 10;
    least -= least == 0 ? 0 : around;
    most += around;
  }
  const double step = nice_step((most - least) / std::max(num_ticks, 1), unit);
  const double first = std::floor(least / step + 1e-9), last = std::ceil(most / step - 1e-9);
  Scale scale{first * step, last * step, false, {}};
  for (double i = first; i <= last && scale.ticks.size() < 100; ++i) scale.ticks.push_back(i * step);
  return scale;
}

Scale step_scale(double from, double to, int num_ticks) {
  if (!(to > from)) to = from + 1;
  const double step = std::max(nice_step((to - from) / std::max(num_ticks, 1), ValueUnit::None), 1.0);
  Scale scale{from, to, false, {}};
  for (double i = std::ceil(from / step); i * step <= to && scale.ticks.size() < 100; ++i) {
    scale.ticks.push_back(i * step);
  }
  return scale;
}

Scale log_scale(double least, double most, int num_ticks) {
  const double first = std::floor(std::log10(least)), last = std::ceil(std::log10(most));
  const double decades = std::max(last - first, 1.0), every = std::ceil(decades / std::max(num_ticks, 1));
  std::vector<double> ticks;
  for (double power = first; power <= first + decades + every / 2; power += every) {
    for (const double times : {1.0, 2.0, 5.0}) {
      if (times == 1 || 2 * decades <= num_ticks) ticks.push_back(times * std::pow(10.0, power));
    }
  }
  Scale scale{ticks.front(), ticks.back(), true, {}};
  for (const double tick : ticks) {  // begins and ends at the ticks around the values
    if (tick <= least * (1 + 1e-9)) scale.from = tick;
    if (tick >= most * (1 - 1e-9)) {
      scale.to = tick;
      break;
    }
  }
  if (scale.to <= scale.from) scale.to = scale.from * 10;
  for (const double tick : ticks) {
    if (tick >= scale.from * (1 - 1e-9) && tick <= scale.to * (1 + 1e-9)) scale.ticks.push_back(tick);
  }
  return scale;
}

}  // namespace meshtrain
