#pragma once

#include <string>

namespace meshtrain {

/// The unit of a number, which decides its format.
enum class ValueUnit { None, Bytes, Seconds, Percent, PerSecond, Flops };

/// Returns `value` with its unit in at most about eight characters: "0.00123", "1.5e-05", "12.3k", "4.7 GiB",
/// "350 ms", "2:05:00", "38.2 %" (of a value of 0.382). "-" for one that is not finite.
std::string text_of(double value, ValueUnit unit = ValueUnit::None);

}  // namespace meshtrain
