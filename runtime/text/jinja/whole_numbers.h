#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace meshtrain::jinja {

/// Returns Python's int(text), else int(float(text)); std::nullopt when both raise an error. Accepts spaces around, a
/// sign, underscores between digits and digits of any script. Throws Failure for a number beyond 64 bits.
std::optional<int64_t> parse_whole(std::string_view text);

}  // namespace meshtrain::jinja
