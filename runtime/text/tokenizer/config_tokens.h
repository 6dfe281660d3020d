#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/tokenizer/added_tokens.h"
#include "runtime/text/tokenizer/json_cursor.h"

namespace meshtrain {

/// A token in one of the files beside a tokenizer: its content and flags, without an id.
struct ConfigToken {
  AddedToken token = {};
  bool is_text = false;     // given by its text alone
  std::string source = {};  // the file and the path in it: "DIR/tokenizer_config.json: bos_token"
};

/// The tokens in the files beside a tokenizer, as transformers 5 reads them: tokenizer_config.json, and where that has
/// no added_tokens_decoder, special_tokens_map.json, which overrides it, and added_tokens.json.
struct ConfigTokens {
  /// The tokens with names: bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, then further
  /// keys *_token and the members of an object extra_special_tokens.
  std::vector<std::pair<std::string, ConfigToken>> named;
  /// The tokens that are added to those of tokenizer.json, in this order. Some may be known already.
  std::vector<ConfigToken> added;
};

/// Reads the files in `folder`. `tokenizer`: the root of the tokenizer.json there, null for none. Throws InputError
/// that names the file and the path in it.
ConfigTokens read_config_tokens(const std::filesystem::path& folder, const JsonCursor* tokenizer);

}  // namespace meshtrain
