#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Byte-level tokens are written with one printable character a byte: itself where it is printable Latin-1, else one
/// from U+0100 on (GPT-2's bytes_to_unicode).
namespace meshtrain {

/// The bytes that a token written so stands for; nothing when a character is not of that alphabet. `token` is valid
/// UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);

/// How a byte is written.
std::string written_byte(unsigned char byte);

}  // namespace meshtrain
