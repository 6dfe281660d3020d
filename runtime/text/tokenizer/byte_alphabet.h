#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Byte-level tokens are written with one printable character a byte: itself where it is printable Latin-1, else one
/// from U+0100 on (GPT-2's bytes_to_unicode).
namespace meshtrain {

/// Returns the bytes that `token`, valid UTF-8, stands for in this alphabet; std::nullopt when a character is not of
/// it.
std::optional<std::string> bytes_of_token(std::string_view token);

/// Returns the character that stands for a byte.
std::string written_byte(unsigned char byte);

}  // namespace meshtrain
