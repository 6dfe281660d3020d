#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace meshtrain::jinja {

/// Returns Python's int(text), or int(float(text)) when that raises an error; std::nullopt when both do. Accepts spaces
/// around the number, a sign, underscores between digits, and digits of any script. Throws Failure for a number beyond
/// 64 bits.
std::optional<int64_t> parse_whole(std::string_view text);

}  // namespace meshtrain::jinja
