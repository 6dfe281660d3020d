#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace meshtrain::jinja {

/// Returns Python's int(text), or else int(float(text)), with spaces around it, a sign, underscores between digits and
/// digits of any script; std::nullopt where both raise an error. Throws Failure for a number beyond 64 bits.
std::optional<int64_t> parse_whole(std::string_view text);

}  // namespace meshtrain::jinja
