#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

/// The unit of an axis or a number: how it is written.
enum class ValueUnit { None, Bytes, Seconds, Percent, PerSecond, Flops };

/// Returns `value` with its unit in at most about eight characters: "0.00123", "1.5e-05", "12.3k", "4.7 GiB",
/// "350 ms", "2:05:00", "38.2 %" (of a value of 0.382). "-" for one that is not finite.
std::string text_of(double value, ValueUnit unit = ValueUnit::None);

/// The range of an axis, and where its ticks are.
struct Scale {
  double from = 0;
  double to = 1;
  bool is_log = false;
  std::vector<double> ticks;  ///< ascending, within [from, to]

  /// Returns where `value` lies: 0 at `from`, 1 at `to`; beyond these for values beyond the range. `value` must be
  /// positive on a logarithmic scale.
  double position(double value) const;
};

/// Returns a scale with about `num_ticks` ticks at multiples of 1, 2 or 5 times a power of ten (of two for bytes) that
/// begins and ends at a tick. The range may be empty or reversed, and any of its ends not finite.
Scale linear_scale(double least, double most, int num_ticks, ValueUnit unit = ValueUnit::None);

/// Returns a scale from `from` to `to`, exactly, with ticks at whole numbers: of steps.
Scale step_scale(double from, double to, int num_ticks);

/// Returns a logarithmic scale; 0 < least <= most. Ticks at powers of ten, and at 2 and 5 times these where there is
/// room.
Scale log_scale(double least, double most, int num_ticks);

}  // namespace meshtrain
