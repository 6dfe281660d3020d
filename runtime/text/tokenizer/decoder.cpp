#include "runtime/text/tokenizer/decoder.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/text/tokenizer/byte_alphabet.h"

namespace meshtrain {
namespace {

using Tokens = std::vector<std::string>;

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    result += text.substr(at, found - at);
    if (found == text.size()) break;
    result += to;
    at = found + from.size();
  }
  return result;
}

/// Returns the byte of a token <0xHH>.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

void step(const ByteLevelDecoding&, Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
  tokens = {std::move(bytes)};
}

void step(const ReplaceDecoding& replace, Tokens& tokens) {
  for (std::string& token : tokens) token = replaced(token, replace.from, replace.to);
}

void step(const ByteFallbackDecoding&, Tokens& tokens) {
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = byte_of(token)) token = std::string(1, *byte);
  }
}

void step(const FuseDecoding&, Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  tokens = {std::move(text)};
}

void step(const StripDecoding& strip, Tokens& tokens) {
  for (std::string& token : tokens) {
    size_t begin = 0;
    for (int64_t i = 0; i < strip.count && token.compare(begin, strip.content.size(), strip.content) == 0; ++i) {
      begin += strip.content.size();
    }
    token.erase(0, begin);
  }
}

void step(const MetaspaceDecoding& metaspace, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = replaced(tokens[i], metaspace.replacement, i == 0 && !metaspace.keeps_first ? "" : " ");
  }
}

void step(const SpacesDecoding&, Tokens& tokens) {
  for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
}

}  // namespace

std::string decode_tokens(const std::vector<DecodingStep>& steps, std::vector<std::string> tokens) {
  for (const DecodingStep& next : steps) {
    std::visit([&](const auto& kind) { step(kind, tokens); }, next);
  }
  step(FuseDecoding{}, tokens);
  return std::move(tokens.front());
}

}  // namespace meshtrain
