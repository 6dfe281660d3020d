#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace meshtrain::jinja {

/// Returns Python's int(text, base), with spaces around it, a sign, underscores between digits, digits of any script,
/// and for bases 0, 2, 8 and 16 their prefix; std::nullopt where Python raises a ValueError. Throws Failure for a
/// number beyond 64 bits.
std::optional<int64_t> parse_whole(std::string_view text, int64_t base);

/// Returns Python's int(float(text)); std::nullopt where it raises an error. Throws Failure for a number beyond 64
/// bits.
std::optional<int64_t> parse_truncated(std::string_view text);

}  // namespace meshtrain::jinja
