#include "runtime/text/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

constexpr uint32_t kShifted = 0x100;

struct Alphabet {
  std::array<uint32_t, 256> written{};
  std::array<int, 512> bytes{};

  constexpr Alphabet() {
    bytes.fill(-1);
    uint32_t shifted = kShifted;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      written[byte] = printable ? byte : shifted++;
      bytes[written[byte]] = static_cast<int>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (const char *at = token.data(), *end = at + token.size(); at != end;) {
    const uint32_t c = next_code_point(at);
    if (c >= kAlphabet.bytes.size() || kAlphabet.bytes[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.bytes[c]);
  }
  return bytes;
}

std::string written_byte(unsigned char byte) {
  std::string text;
  append_utf8(kAlphabet.written[byte], text);
  return text;
}

}  // namespace meshtrain
