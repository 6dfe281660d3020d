#include "runtime/program/report/value_text.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "mesh/base/size_text.h"

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

}  // namespace meshtrain
