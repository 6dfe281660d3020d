#include "runtime/text/prepare/sidecar_tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "mesh/base/error.h"

namespace meshtrain {

TokenSidecar sidecar_of_origin(const Tokenizer& tokenizer, const std::string& name, std::optional<int64_t> separator,
                               const std::string& command) {
  const std::string checksum = tokenizer_fingerprint(name);
  TokenSidecar sidecar;
  sidecar.separator = separator;
  sidecar.vocabulary_size = std::max(tokenizer.vocabulary_size(), separator.value_or(-1) + 1);
  sidecar.tokenizer = checksum == name ? checksum : std::filesystem::absolute(name).string();
  sidecar.tokenizer_checksum = checksum;
  sidecar.command = command;
  return sidecar;
}

bool is_other_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer) try {
  return !tokenizer.empty() && tokenizer_fingerprint(tokenizer) != sidecar.tokenizer_checksum;
} catch (const InputError&) {  // it does not exist: describe_data() says so
  return false;
}

std::optional<int64_t> vocabulary_with(const std::string& tokenizer, std::optional<int64_t> separator) {
  const auto found = try_load_tokenizer(tokenizer);
  return found ? std::optional(std::max(found->vocabulary_size(), separator.value_or(-1) + 1)) : std::nullopt;
}

TokenizerMatch match_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer) {
  if (!is_other_tokenizer(sidecar, tokenizer)) return TokenizerMatch::Same;
  const std::optional<int64_t> vocabulary = vocabulary_with(tokenizer, sidecar.separator);
  if (!vocabulary) return TokenizerMatch::Same;
  return *vocabulary == sidecar.vocabulary_size ? TokenizerMatch::OtherChecksum : TokenizerMatch::OtherVocabulary;
}

}  // namespace meshtrain
