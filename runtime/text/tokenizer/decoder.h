#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace meshtrain {

/// Joins tokens that are written in the alphabet of bytes (byte_alphabet.h) to their bytes.
struct ByteLevelDecoding {};

/// Replaces a text in each token.
struct ReplaceDecoding {
  std::string from, to;
};

/// Turns tokens <0xHH> into their bytes.
struct ByteFallbackDecoding {};

/// Joins all tokens to one.
struct FuseDecoding {};

/// Removes up to `count` characters `content` from the beginning of each token.
struct StripDecoding {
  std::string content;
  int64_t count = 0;
};

/// Turns the replacement into a space again; in the first token it is removed unless `keeps_first`.
struct MetaspaceDecoding {
  std::string replacement;
  bool keeps_first = false;
};

/// Joins tokens with spaces, as the package does without a decoder.
struct SpacesDecoding {};

using DecodingStep = std::variant<ByteLevelDecoding, ReplaceDecoding, ByteFallbackDecoding, FuseDecoding, StripDecoding,
                                  MetaspaceDecoding, SpacesDecoding>;

/// Returns the text of `tokens`, which the steps change one after the other. As long as the bytes of <0xHH> tokens are
/// UTF-8 it is the text of the `tokenizers` package; where they are not, that has U+FFFD and this has the bytes.
std::string decode_tokens(const std::vector<DecodingStep>& steps, std::vector<std::string> tokens);

}  // namespace meshtrain
